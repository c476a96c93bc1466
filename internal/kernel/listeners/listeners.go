// Package listeners sees whether a proxy listens in a pod's network namespace, by asking the kernel for the namespace's
// sockets (sock_diag(7)). It connects to nobody.
package listeners

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Need is a socket that connections are redirected to.
type Need struct {
	Family ruleset.Family
	// UDP is for datagrams; otherwise TCP.
	UDP  bool
	Port uint16
	// Loopback: it is reached by the loopback address, as what the pod itself sends is. Otherwise by the pod's own address.
	Loopback bool
}

// String returns for example "tcp/ipv6 15008".
func (n Need) String() string {
	proto := "tcp"
	if n.UDP {
		proto = "udp"
	}
	return fmt.Sprintf("%s/%s %d", proto, n.Family, n.Port)
}

// Needed returns the sockets that a Redirect redirects to, in the given families.
func Needed(r redirect.Redirect, families []ruleset.Family) (needs []Need) {
	for _, f := range families {
		needs = append(needs, Need{f, false, r.Proxy.OutboundPort, true})
		if !r.Inbound.Ports.Empty() {
			needs = append(needs, Need{f, false, r.Proxy.InboundPort, false})
		}
		if r.Proxy.TunnelPort != 0 {
			needs = append(needs, Need{f, false, r.Proxy.TunnelPort, false})
		}
		if r.DNS.Enabled() && r.DNS.Port != 0 {
			needs = append(needs, Need{f, true, r.DNS.Port, true})
			if !r.DNS.UDPOnly {
				needs = append(needs, Need{f, false, r.DNS.Port, true})
			}
		}
	}
	return needs
}

// Socket is a socket that receives.
type Socket struct {
	UDP  bool
	Port uint16
	// Addr is the address that it is bound to.
	Addr netip.Addr
	// V6Only: bound to all addresses of IPv6, it receives none of IPv4.
	V6Only bool
}

// serves reports whether the socket receives what the need is about. Own are the pod's addresses.
func (s Socket) serves(n Need, own []netip.Addr) bool {
	if s.UDP != n.UDP || s.Port != n.Port {
		return false
	}
	addr := s.Addr.Unmap()
	switch {
	case addr.IsUnspecified():
		return ruleset.FamilyOf(addr) == n.Family || addr.Is6() && !s.V6Only
	case ruleset.FamilyOf(addr) != n.Family:
		return false
	case n.Loopback:
		return addr.IsLoopback()
	}
	return slices.Contains(own, addr)
}

// Words lists needs for people.
func Words(needs []Need) string {
	words := make([]string, len(needs))
	for i, n := range needs {
		words[i] = n.String()
	}
	return strings.Join(words, ", ")
}
