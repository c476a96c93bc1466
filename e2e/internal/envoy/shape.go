package envoy

import "net/netip"

// Shape is how a mesh's proxy listens and connects.
type Shape struct {
	Name              string
	UID, GID          uint32
	Outbound, Inbound uint16
	// Health and Metrics answer without redirection; 0 is none.
	Health, Metrics uint16
	// DNS is the port of the DNS proxy on localhost, TCP and UDP; 0 is none.
	DNS uint16
	// Transparent: inbound connections arrive by TPROXY, and go on to the application from the client's address.
	Transparent bool
	// Source are the addresses from which the proxy speaks to the application, one a family; none is the kernel's choice.
	Source []netip.Addr
	// LocalApp is where every inbound connection goes, as with Consul, whose proxy knows its one application's port. The
	// zero value is the original destination.
	LocalApp netip.AddrPort
	// Services are addresses of services with the endpoint that stands behind each: connections to all others go to their
	// original destination.
	Services map[netip.AddrPort]netip.AddrPort
	// Direct are ports on localhost that applications speak to by themselves, without redirection, with the endpoint that
	// stands behind each.
	Direct map[uint16]netip.AddrPort
	// Local are inbound ports whose application listens on the loopback address only.
	Local []uint16
	// Names are what the DNS proxy knows.
	Names map[string][]netip.Addr
}

// Istio is the shape of Istio's sidecar.
func Istio() Shape {
	return Shape{
		Name: "istio", UID: 1337, GID: 1337, Outbound: 15001, Inbound: 15006, Health: 15021, Metrics: 15090, DNS: 15053,
		Source: []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")},
	}
}

// admin is the port of Envoy's own administration, on localhost.
const admin = 15000
