// Package netready tells when a network namespace's addresses can be used.
package netready

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addrs returns nil once the veths of the calling thread's network namespace that are up carry packets, and the addresses of links that
// are up can be sent from and to, but for those of IPv6 that are link-local. The kernel answers the request for a link or an address
// first and does the rest in a worker of its own (linkwatch, addrconf_dad_work), for IPv6 even with IFA_F_NODAD. What is sent before
// that is lost, or refused with EHOSTUNREACH.
func Addrs() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	up := map[int]bool{}
	for _, l := range links {
		up[l.Attrs().Index] = l.Attrs().Flags&unix.IFF_UP != 0
		if a := l.Attrs(); l.Type() == "veth" && up[a.Index] && a.OperState != netlink.OperUp {
			return fmt.Errorf("link %s is %s", a.Name, a.OperState)
		}
	}
	addrs, err := netlink.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() || !up[a.LinkIndex] {
			continue
		}
		routes, err := netlink.RouteGet(a.IP)
		if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL || a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return fmt.Errorf("address %s is not local yet: %v, %v", a.IPNet, routes, err)
		}
	}
	return nil
}
