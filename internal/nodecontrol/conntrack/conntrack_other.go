//go:build !linux

package conntrack

import (
	"errors"
	"fmt"

	"github.com/meshcni/meshcni/internal/nodecontrol/listeners"
	"github.com/meshcni/meshcni/netnsexec"
)

// Table is the connection tracking of a namespace, which only Linux has.
type Table struct{}

var errPlatform = fmt.Errorf("connection tracking: %w", errors.ErrUnsupported)

// Open returns an error that errors.Is(err, errors.ErrUnsupported), as all do here.
func Open(*netnsexec.NetNS) (*Table, error) { return nil, errPlatform }

// Track fails.
func (*Table) Track() error { return errPlatform }

// Adopt fails.
func (*Table) Adopt([]listeners.Connection) error { return errPlatform }

// ForgetDatagrams fails.
func (*Table) ForgetDatagrams(uint16, bool) (int, error) { return 0, errPlatform }

// Close does nothing.
func (*Table) Close() {}
