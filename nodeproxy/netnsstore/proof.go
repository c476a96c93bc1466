//go:build linux

package netnsstore

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// addresses returns all addresses in a namespace, from the kernel.
func addresses(ns *netnsexec.NetNS) ([]netip.Addr, error) {
	fail := func(err error) error { return fmt.Errorf("read the addresses in %s: %w", ns.ID(), err) }
	var h *netlink.Handle
	err := ns.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fail(err)
	}
	defer h.Close()
	var list []netlink.Addr
	for range 5 { // a dump is interrupted by whatever changes an address meanwhile
		if list, err = h.AddrList(nil, netlink.FAMILY_ALL); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fail(err)
	}
	has := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			has = append(has, ip.Unmap())
		}
	}
	return has, nil
}

// holds says which of the wanted addresses are missing. That none is wanted is [ErrNoAddress].
func holds(has, want []netip.Addr) error {
	if len(want) == 0 {
		return ErrNoAddress
	}
	missing := slices.DeleteFunc(plain(want), func(a netip.Addr) bool { return slices.Contains(has, a) })
	if len(missing) > 0 {
		return fmt.Errorf("%w: %v of %v", ErrAddress, missing, want)
	}
	return nil
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
