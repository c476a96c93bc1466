//go:build !linux

package podrules

import (
	"errors"
	"net/netip"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/netnsexec"
)

// Bypasses returns an error.
func Bypasses(*netnsexec.NetNS, []netip.Addr) ([]dialect.Bypass, error) {
	return nil, errors.ErrUnsupported
}
