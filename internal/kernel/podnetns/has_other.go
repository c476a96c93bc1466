//go:build !linux

package podnetns

import (
	"context"
	"errors"
	"net/netip"

	"github.com/meshcni/meshcni/netnsexec"
)

// Has returns an error that errors.Is(err, errors.ErrUnsupported).
func Has(context.Context, *netnsexec.NetNS, []netip.Addr) (Held, error) {
	return Held{}, errors.ErrUnsupported
}

// Groups implements [Proc] likewise.
func (proc) Groups(func(Made) error) error { return errors.ErrUnsupported }

func (proc) owned(*netnsexec.NetNS, bool) error { return errors.ErrUnsupported }
