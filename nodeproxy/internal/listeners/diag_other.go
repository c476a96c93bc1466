//go:build !linux

package listeners

import (
	"errors"
	"fmt"

	"github.com/meshcni/meshcni/netnsexec"
)

// List returns an error that errors.Is(err, errors.ErrUnsupported).
func List(*netnsexec.NetNS, map[uint16]bool) ([]Socket, error) {
	return nil, fmt.Errorf("list the sockets of a network namespace: %w", errors.ErrUnsupported)
}

// Connections returns an error that errors.Is(err, errors.ErrUnsupported).
func Connections(*netnsexec.NetNS) ([]Connection, error) {
	return nil, fmt.Errorf("list the connections of a network namespace: %w", errors.ErrUnsupported)
}
