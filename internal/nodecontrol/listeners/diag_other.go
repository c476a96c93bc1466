//go:build !linux

package listeners

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/meshcni/meshcni/netnsexec"
)

var errPlatform = fmt.Errorf("list the sockets of a network namespace: %w", errors.ErrUnsupported)

// Missing returns an error that errors.Is(err, errors.ErrUnsupported).
func Missing(*netnsexec.NetNS, []Need, []netip.Addr) ([]Need, error) { return nil, errPlatform }

// Connections returns an error that errors.Is(err, errors.ErrUnsupported).
func Connections(*netnsexec.NetNS) ([]Connection, error) { return nil, errPlatform }

// Carried returns an error that errors.Is(err, errors.ErrUnsupported).
func Carried(*netnsexec.NetNS, Proxy) (int, error) { return 0, errPlatform }

// Waits returns an error that errors.Is(err, errors.ErrUnsupported).
func Waits(*netnsexec.NetNS, Proxy) (bool, error) { return false, errPlatform }
