package validate

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestPlan needs no kernel: what is tried follows from the rules, the
// identities and the addresses.
func TestPlan(t *testing.T) {
	t.Parallel()
	proxy, app := Identity{1337, 1337}, Identity{1000, 1000}
	eth0 := netip.MustParseAddr("10.244.1.5")
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	dns := func(servers redirect.PrefixSet) redirect.Redirect {
		r := redirect.Default()
		r.DNS = redirect.DNS{Servers: servers, Port: 15053}
		return r
	}
	drop := redirect.Default()
	drop.IPv6 = redirect.FamilyDrop
	excluded := redirect.Default()
	excluded.Outbound.ExcludeCIDRs = redirect.Prefixes(netip.MustParsePrefix("192.0.2.0/24"))
	interfaceOut := redirect.Default()
	interfaceOut.ExcludeInterfaces = []string{"eth0"}
	tests := map[string]struct {
		redirect redirect.Redirect
		as       Identity
		addrs    []netip.Addr
		want     map[string]string // aspect to destination and port, or to ""
	}{
		"proxy":       {redirect.Default(), proxy, []netip.Addr{eth0}, map[string]string{"ipv4 inbound": "127.0.0.6:15002", "ipv4 outbound": "", "ipv6 inbound": "", "ipv6 outbound": ""}},
		"application": {redirect.Default(), app, []netip.Addr{eth0}, map[string]string{"ipv4 inbound": "", "ipv4 outbound": "192.0.2.1:15002", "ipv6 inbound": "", "ipv6 outbound": ""}},
		"closed":      {drop, app, []netip.Addr{eth0}, map[string]string{"ipv4 inbound": "", "ipv4 outbound": "192.0.2.1:15002", "ipv6 family": ""}},
		"excluded":    {excluded, app, []netip.Addr{eth0}, map[string]string{"ipv4 inbound": "", "ipv4 outbound": "198.51.100.1:15002", "ipv6 inbound": "", "ipv6 outbound": ""}},
		"interface":   {interfaceOut, app, []netip.Addr{eth0}, map[string]string{"ipv4 inbound": "", "ipv4 outbound": "", "ipv6 inbound": "", "ipv6 outbound": ""}},
		"all look-ups": {dns(redirect.AllPrefixes()), app, nil, map[string]string{
			"ipv4 inbound": "", "ipv4 outbound": "", "ipv4 dns-udp": "127.0.0.6:53", "ipv4 dns-tcp": "127.0.0.6:53",
			"ipv6 inbound": "", "ipv6 outbound": "", "ipv6 dns-udp": "[::1]:53", "ipv6 dns-tcp": "[::1]:53",
		}},
		"the proxy's look-ups": {dns(redirect.AllPrefixes()), proxy, nil, map[string]string{
			"ipv4 inbound": "127.0.0.6:15002", "ipv4 outbound": "", "ipv4 dns-udp": "", "ipv4 dns-tcp": "", "ipv4 dns-exemption": "127.0.0.6:53",
			"ipv6 inbound": "", "ipv6 outbound": "", "ipv6 dns-udp": "", "ipv6 dns-tcp": "", "ipv6 dns-exemption": "",
		}},
		"one resolver": {dns(redirect.Prefixes(netip.MustParsePrefix("10.96.0.10/32"))), app, []netip.Addr{eth0}, map[string]string{
			"ipv4 inbound": "", "ipv4 outbound": "192.0.2.1:15002", "ipv4 dns-udp": "10.96.0.10:53", "ipv4 dns-tcp": "10.96.0.10:53",
			"ipv6 inbound": "", "ipv6 outbound": "", "ipv6 dns-udp": "", "ipv6 dns-tcp": "", "ipv6 dns-exemption": "",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addrs := append(append([]netip.Addr{}, loopback...), tt.addrs...)
			p := planner{
				redirect: tt.redirect, rules: tt.redirect.MustRuleset(), probe: DefaultProbePort,
				surroundings: surroundings{identities: []Identity{tt.as}, addrs: addrs, route: routesOf(tt.addrs)},
			}
			got := map[string]string{}
			for _, s := range p.plan() {
				to := ""
				if s.Destination.IsValid() {
					to = s.Destination.String()
					assert.NotEmpty(t, s.Rule)
				} else {
					assert.Equal(t, untested, s.Outcome)
					assert.NotEmpty(t, s.Detail)
				}
				got[s.Family.String()+" "+s.Aspect] = to
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// routesOf has lo, and by eth0 a default route of the addresses' family.
func routesOf(addrs []netip.Addr) func(netip.Addr) (netip.Addr, string, bool) {
	return func(dst netip.Addr) (netip.Addr, string, bool) {
		if dst.IsLoopback() {
			return dst, "lo", true
		}
		for _, a := range addrs {
			if a == dst {
				return a, "lo", true
			}
			if ruleset.FamilyOf(a) == ruleset.FamilyOf(dst) {
				return a, "eth0", true
			}
		}
		return netip.Addr{}, "", false
	}
}
