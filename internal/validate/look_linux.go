package validate

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// look finds out about the calling thread's namespace. Nothing it asks needs a capability.
func look(r redirect.Redirect) (surroundings, error) {
	s := surroundings{route: route, identities: identities(r)}
	addrs, err := netlink.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return s, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		// An address that duplicate address detection has not released cannot be sent from. One that it has just released may not be
		// delivered yet: the kernel adds the local route after that.
		if ok && !addr.IsLinkLocalUnicast() && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 && delivered(addr) {
			s.addrs = append(s.addrs, addr)
		}
	}
	return s, nil
}

// delivered reports that the calling thread's namespace takes packets to an address as its own.
func delivered(addr netip.Addr) bool {
	routes, err := netlink.RouteGet(addr.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// route asks the kernel of the calling thread's namespace.
func route(dst netip.Addr) (src netip.Addr, by string, ok bool) {
	routes, err := netlink.RouteGet(dst.AsSlice())
	if err != nil || len(routes) == 0 {
		return src, "", false
	}
	r := routes[0]
	if r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_LOCAL {
		return src, "", false
	}
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return src, "", false
	}
	src, _ = netip.AddrFromSlice(r.Src)
	return src.Unmap(), link.Attrs().Name, true
}

// identities are the process's own and, where it may take others, the proxy's and an application's.
func identities(r redirect.Redirect) []Identity {
	own := self()
	all := []Identity{own}
	for _, id := range []Identity{proxyOf(r, own), appOf(r)} {
		if slices.Contains(all, id) {
			continue
		}
		if fd, err := socket(id, ruleset.IPv4, tcp); err == nil {
			_ = unix.Close(fd)
			all = append(all, id)
		}
	}
	return all
}

// self is the process's own identity.
func self() Identity {
	return Identity{uint32(os.Geteuid()), uint32(os.Getegid())} //nolint:gosec // the kernel's ids are 32 bits
}
