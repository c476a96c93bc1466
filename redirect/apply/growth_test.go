//go:build linux

package apply_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var everyBackend = []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy, ruleset.BackendNftables}

func prefixSet(list ...string) redirect.PrefixSet {
	var p []netip.Prefix
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return redirect.Prefixes(p...)
}

// byMark is a proxy that is known by the mark of its packets.
func byMark() redirect.Redirect {
	r := redirect.Default()
	r.Proxy.UIDs = nil
	r.Proxy.Mark = redirect.Mark{Value: 0x539, Mask: 0xfff}
	r.Proxy.TunnelPort = 15008
	r.Loopback = redirect.LoopbackPass
	r.Inbound.ExcludeSources = prefixSet("10.244.1.1/32", "fd00:77::1/128")
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	r.Names.InboundMark, r.Names.MarkMask, r.Names.RouteTable, r.Names.RoutePriority = 0x111, 0xfff, 100, 32764
	return r
}

// TestKernelTakesEveryField applies values that use each field beyond the
// common ones, and reads back what the kernel has made of them.
func TestKernelTakesEveryField(t *testing.T) {
	redirects := map[string]func(*redirect.Redirect){
		"exclusions": func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{
				{Ports: redirect.AllPorts(), CIDRs: prefixSet("10.0.0.0/8", "fd00:1::/64")},
				{Protocol: redirect.UDP, Ports: redirect.Ports(53, 8125), CIDRs: redirect.AllPrefixes(), UIDs: []redirect.IDRange{{First: 1000, Last: 2000}}},
				{Protocol: redirect.TCP, Ports: redirect.AllPorts(), CIDRs: prefixSet("192.0.2.0/24"), UIDs: []redirect.IDRange{redirect.IDRange{First: 5, Last: 5}}},
			}
			r.Inbound.ExcludeSources = prefixSet("192.168.0.0/16", "2001:db8::/32")
			r.Loopback = redirect.LoopbackPass
		},
		"resolver": func(r *redirect.Redirect) {
			r.Loopback = redirect.LoopbackCapture
			r.DNS = redirect.DNS{
				Servers: redirect.AllPrefixes(), Everyone: true,
				To: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:0"), netip.MustParseAddrPort("[::1]:8600")},
			}
		},
		"virtual networks": func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053, UDPOnly: true}
			r.VirtualNetworks = []redirect.VirtualNetwork{
				{Interface: "virt0", Local: netip.MustParsePrefix("10.99.0.0/24")}, {Interface: "virt0", Local: netip.MustParsePrefix("fd00:99::/64")},
			}
			r.Log = redirect.Log{Enabled: true, Level: 7}
		},
		"virtual networks by wildcard": func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053, UDPOnly: true}
			r.VirtualNetworks = []redirect.VirtualNetwork{
				{Interface: "vi+", Local: netip.MustParsePrefix("10.99.0.0/24")}, {Interface: "virt+", Local: netip.MustParsePrefix("fd00:99::/64")},
			}
		},
		"log at the default level": func(r *redirect.Redirect) { r.Log = redirect.Log{Enabled: true, Level: 4} },
		"proxy by mark":            func(r *redirect.Redirect) { *r = byMark() },
		"proxy by whole mark": func(r *redirect.Redirect) {
			*r = byMark()
			r.Proxy.Mark.Mask, r.Names.MarkMask, r.Names.RoutePriority = 0, 0, 0
		},
	}
	for _, name := range everyBackend {
		t.Run(string(name), func(t *testing.T) {
			w := netnstest.NewWorld(t, netnstest.Options{})
			b := choose(t, w.Pod, name)
			before := state(t, w.Pod)
			for what, change := range redirects {
				r := redirect.Default()
				change(&r)
				rs, err := r.Ruleset()
				require.NoError(t, err)
				_, err = b.Apply(t.Context(), rs)
				require.NoError(t, err, what)
				diffs, err := b.Check(t.Context(), rs)
				require.NoError(t, err, what)
				assert.Empty(t, diffs, what)
				require.NoError(t, b.Remove(t.Context(), rs.Owner()), what)
				// The owner's empty program: a ruleset without any has no owner, so nothing in it could differ.
				diffs, err = b.Check(t.Context(), rs.Owner().EmptyRuleset())
				require.NoError(t, err, what)
				assert.Empty(t, diffs, what)
				assert.Equal(t, before, state(t, w.Pod), what)
			}
		})
	}
}
