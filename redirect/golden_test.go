package redirect_test

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/rulesettest"
)

// goldens are programs to review: each shows what one setting does to the
// default. `make golden` writes them anew.
var goldens = []struct {
	name   string
	change func(r *redirect.Redirect)
}{
	{"default", func(*redirect.Redirect) {}},
	{"tproxy", func(r *redirect.Redirect) {
		r.Mode, r.Proxy.GIDs = redirect.ModeTProxy, []uint32{1337}
		r.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}
		r.Inbound.ExcludePorts = redirect.Ports(22)
		r.Proxy.TunnelPort = 15008
	}},
	{"tproxy-some-ports", func(r *redirect.Redirect) {
		r.Mode, r.Inbound.Ports = redirect.ModeTProxy, redirect.Ports(8080, 9090)
	}},
	{"dns", func(r *redirect.Redirect) {
		r.DNS, r.Proxy.GIDs = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}, []uint32{1337}
	}},
	{"dns-one-server", func(r *redirect.Redirect) {
		r.DNS = redirect.DNS{Servers: prefixSet("10.96.0.10/32"), Port: 15053}
	}},
	{"drop-invalid", func(r *redirect.Redirect) { r.DropInvalid = true }},
	{"include-interfaces", func(r *redirect.Redirect) { r.IncludeInterfaces = []string{"eth0", "net1"} }},
	{"outbound-only", func(r *redirect.Redirect) { r.Inbound.Ports, r.Proxy.InboundPort = redirect.NoPorts(), 0 }},
	{"drop-udp", func(r *redirect.Redirect) {
		r.Outbound.DropUDPPorts, r.DNS = redirect.Ports(443), redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	}},
	{"own", func(r *redirect.Redirect) {
		r.Own = []ruleset.Chain{ownChain(ruleset.Mangle, "MESH_OUTPUT_FIRST", quic), ownChain(ruleset.NAT, "MESH_OUTPUT_LAST", syslog, special)}
	}},
	{"own-hooks", func(r *redirect.Redirect) {
		pass := ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionReturn}}
		r.Own = []ruleset.Chain{
			ownChain(ruleset.Mangle, "MESH_INPUT_FIRST", quic), ownChain(ruleset.Mangle, "MESH_FORWARD", quic), ownChain(ruleset.Mangle, "MESH_POSTROUTING_LAST", quic),
			ownChain(ruleset.NAT, "MESH_INPUT", pass), ownChain(ruleset.NAT, "MESH_POSTROUTING_FIRST", pass), ownChain(ruleset.Raw, "MESH_PREROUTING_FIRST", quic),
		}
	}},
	{"exclude-interfaces", func(r *redirect.Redirect) { r.ExcludeInterfaces = []string{"net1", "net2"} }},
	{"virtual-interfaces", func(r *redirect.Redirect) {
		r.VirtualInterfaces, r.Outbound.CIDRs = []string{"virt0"}, prefixSet("10.0.0.0/8", "fd00::/8")
	}},
	{"inbound-ports", func(r *redirect.Redirect) { r.Inbound.Ports = redirect.Ports(8080) }},
	{"inbound-none", func(r *redirect.Redirect) { r.Inbound.Ports = redirect.NoPorts() }},
	{"many-ports", func(r *redirect.Redirect) {
		var list []uint16
		for p := uint16(8000); p < 8040; p += 2 {
			list = append(list, p)
		}
		r.Inbound.ExcludePorts = redirect.Ports(list...)
		r.Outbound.ExcludePorts = redirect.PortRanges(ruleset.PortRange{First: 1, Last: 1023}, ruleset.Port(3306))
	}},
	{"cidrs", func(r *redirect.Redirect) {
		r.Outbound.CIDRs = prefixSet("10.0.0.0/8", "172.16.0.0/12", "fd00::/8")
		r.Outbound.ExcludeCIDRs = prefixSet("10.9.0.0/16", "fd00:9::/32")
		r.Outbound.Ports = redirect.Ports(443)
	}},
	{"loopback-included", func(r *redirect.Redirect) { r.Outbound.CIDRs = prefixSet("127.0.0.0/8", "10.0.0.0/8") }},
	{"owner-groups", func(r *redirect.Redirect) { r.Outbound.OwnerGroups = []uint32{1000, 2000} }},
	{"exclude-owner-groups", func(r *redirect.Redirect) { r.Outbound.ExcludeOwnerGroups = []uint32{1000, 2000} }},
	{"two-proxy-users", func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{1337, 0} }},
	{"drop-ipv6", func(r *redirect.Redirect) {
		r.IPv6, r.Proxy.GIDs = redirect.FamilyDrop, []uint32{1337}
		r.Inbound.ExcludePorts, r.Outbound.ExcludePorts = redirect.Ports(22), redirect.Ports(53)
	}},
	{"group-alone", func(r *redirect.Redirect) { r.Proxy.UIDs, r.Proxy.GIDs = nil, []uint32{2000} }},
	{"pass-ipv6", func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }},
}

func TestGolden(t *testing.T) {
	names := map[string]bool{}
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			r := redirect.Default()
			g.change(&r)
			rulesettest.Golden(t, r.MustRuleset(), filepath.Join("testdata", g.name+".rules"))
			rendersToItself(t, r)
		})
		names[filepath.Join("testdata", g.name+".rules")] = true
	}
	files, err := filepath.Glob("testdata/*.rules")
	require.NoError(t, err)
	for _, f := range files {
		assert.True(t, names[f], "%s is a golden file of no test", f)
	}
}
