//go:build linux

package netnsstore

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/netnsexec"
)

// holds reports that a namespace has the wanted addresses. That none is wanted is [ErrNoAddress].
func holds(ctx context.Context, ns *netnsexec.NetNS, want []netip.Addr) error {
	_, err := proven(ctx, ns, want, nil)
	return err
}

// proven is holds, and returns which of further addresses the namespace has.
func proven(ctx context.Context, ns *netnsexec.NetNS, want, further []netip.Addr) (has []netip.Addr, err error) {
	if len(want) == 0 {
		return nil, ErrNoAddress
	}
	want, further = plain(want), plain(further)
	held, err := podnetns.Has(ctx, ns, union(want, further))
	if err != nil {
		return nil, err
	}
	missing := func(a netip.Addr) bool { return slices.Contains(held.Missing, a) }
	if slices.ContainsFunc(want, missing) {
		lacks := slices.DeleteFunc(slices.Clone(want), func(a netip.Addr) bool { return !missing(a) })
		return nil, fmt.Errorf("%w: %s of %s", ErrAddress, podnetns.Few(lacks), podnetns.Few(want))
	}
	return slices.DeleteFunc(further, missing), nil
}

// plain returns the addresses in the form in which they compare, each once.
func plain(addrs []netip.Addr) []netip.Addr {
	out := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
