//go:build linux

package apply_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// noProcess is a namespace in which nothing can be started.
type noProcess struct {
	*netnsexec.NetNS
	started int
}

func (n *noProcess) Run(cmd *exec.Cmd) error {
	n.started++
	return errors.New("no process may be started: " + cmd.String())
}

// nftRedirects have every kind of rule between them.
func nftRedirects() map[string]redirect.Redirect {
	prefixes := func(s ...string) redirect.PrefixSet {
		var p []netip.Prefix
		for _, s := range s {
			p = append(p, netip.MustParsePrefix(s))
		}
		return redirect.Prefixes(p...)
	}
	change := func(f func(*redirect.Redirect)) redirect.Redirect {
		r := redirect.Default()
		f(&r)
		return r
	}
	many := redirect.PortRanges(ruleset.PortRange{First: 1, Last: 2}, ruleset.PortRange{First: 5, Last: 6}, ruleset.PortRange{First: 65000, Last: 65535}).
		Union(redirect.Ports(22, 80, 443, 1000, 1002, 1004, 1006, 1008, 1010, 1012, 1014, 1016, 1018, 1020))
	tproxy := func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }
	dns := func(r *redirect.Redirect) {
		r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
		r.Proxy.TunnelPort = 15008
	}
	return map[string]redirect.Redirect{
		"many ports": change(func(r *redirect.Redirect) { // odd ones
			for p := uint16(1); p < 9000; p += 2 {
				r.Inbound.ExcludePorts = r.Inbound.ExcludePorts.Union(redirect.Ports(p))
			}
		}),
		"default": redirect.Default(),
		"tproxy":  change(tproxy),
		"dns":     change(dns),
		"dns servers": change(func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: prefixes("10.96.0.10/32", "10.0.0.0/8", "192.168.0.0/17", "fd00::1/128"), Port: 15053}
		}),
		"tproxy dns invalid": change(func(r *redirect.Redirect) {
			tproxy(r)
			dns(r)
			r.DropInvalid = true
			r.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}
			r.Inbound.ExcludePorts = many
			r.Proxy.UIDs = []uint32{1337, 2000}
		}),
		"interfaces": change(func(r *redirect.Redirect) {
			r.ExcludeInterfaces, r.VirtualInterfaces = []string{"net1"}, []string{"virt0", "virt1"}
			r.Outbound.CIDRs = prefixes("198.51.100.0/24", "10.0.0.0/9", "10.128.0.0/9", "224.0.0.0/3", "2001:db8::/33", "ff00::/8")
		}),
		"ports": change(func(r *redirect.Redirect) {
			r.Inbound.ExcludePorts, r.Outbound.ExcludePorts = many, many
			r.Outbound.Ports = redirect.Ports(3306)
		}),
		"inbound list": change(func(r *redirect.Redirect) {
			r.Inbound.Ports = many
			r.Outbound.Ports = redirect.PortRanges(ruleset.PortRange{First: 8000, Last: 8100})
		}),
		"cidrs": change(func(r *redirect.Redirect) {
			r.Outbound.ExcludeCIDRs = prefixes("198.51.100.10/32", "10.1.0.0/16", "10.1.2.0/24", "2001:db8::/32", "fd00::/12", "fd00:1::1/128")
			r.Outbound.CIDRs = prefixes("127.0.0.0/8", "10.0.0.0/8", "::1/128")
		}),
		"groups":         change(func(r *redirect.Redirect) { r.Outbound.OwnerGroups = []uint32{5, 6} }),
		"exclude groups": change(func(r *redirect.Redirect) { r.Outbound.ExcludeOwnerGroups = []uint32{5, 6} }),
		"exclusions": change(func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{
				{Ports: redirect.AllPorts(), CIDRs: prefixes("10.0.0.0/8", "fd00:1::/64")},
				{Protocol: redirect.UDP, Ports: many, CIDRs: redirect.AllPrefixes(), UIDs: []redirect.IDRange{{First: 1000, Last: 2000}}},
				{Protocol: redirect.TCP, Ports: redirect.AllPorts(), CIDRs: prefixes("192.0.2.0/24"), UIDs: []redirect.IDRange{redirect.IDRange{First: 5, Last: 5}}},
			}
			r.Inbound.ExcludeSources = prefixes("192.168.0.0/16", "10.0.0.0/8", "2001:db8::/32")
			r.Log = redirect.Log{Enabled: true, Level: 7}
		}),
		"resolver": change(func(r *redirect.Redirect) {
			r.Loopback = redirect.LoopbackCapture
			r.DNS = redirect.DNS{
				Servers: redirect.AllPrefixes(), Everyone: true,
				To: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:0"), netip.MustParseAddrPort("[::1]:8600")},
			}
		}),
		"virtual networks": change(func(r *redirect.Redirect) {
			r.VirtualNetworks = []redirect.VirtualNetwork{
				{Interface: "virt0", Local: netip.MustParsePrefix("10.99.0.0/24")}, {Interface: "virt0", Local: netip.MustParsePrefix("fd00:99::/64")},
			}
		}),
		"proxy by mark": change(func(r *redirect.Redirect) {
			r.Proxy.UIDs, r.Proxy.Mark = nil, redirect.Mark{Value: 0x539, Mask: 0xfff}
			r.Loopback = redirect.LoopbackPass
			r.Names.InboundMark, r.Names.MarkMask, r.Names.RoutePriority = 0x111, 0xfff, 32764
		}),
		"drop ipv6": change(func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyDrop; r.Inbound.ExcludePorts = many }),
		"pass ipv6": change(func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }),
		"pass ipv4": change(func(r *redirect.Redirect) { r.IPv4 = redirect.FamilyPass }),
	}
}

// everything has what no Redirect makes but the model can say.
func everything() ruleset.Ruleset {
	var rs ruleset.Ruleset
	for _, f := range ruleset.Families {
		to, from := netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("10.3.2.1/32")
		if f == ruleset.IPv6 {
			to, from = netip.MustParsePrefix("fd00::7/128"), netip.MustParsePrefix("fd00::8/128")
		}
		tcp := func(t ruleset.Target) ruleset.Rule { return ruleset.Rule{Proto: ruleset.TCP, Target: t} }
		ret := ruleset.Target{Action: ruleset.ActionReturn}
		p := &ruleset.FamilyRuleset{Family: f, Owner: ruleset.Ownership{Prefix: "ALL_THERE_IS_"}}
		for _, c := range []ruleset.Chain{
			{Table: ruleset.Raw, Name: ruleset.Output, Rules: []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionZone, Zone: 7}}}},
			{Table: ruleset.Mangle, Name: ruleset.Prerouting, Rules: []ruleset.Rule{
				{States: ruleset.StateNew | ruleset.StateUntracked, Target: ruleset.Target{Action: ruleset.ActionSaveMark}},
				{Target: ruleset.Target{Action: ruleset.ActionSetConnMark, Mark: 5, Mask: ruleset.FullMask}},
				{Target: ruleset.Target{Action: ruleset.ActionSetConnMark, Mark: 5, Mask: 0xff}},
				{Target: ruleset.Target{Action: ruleset.ActionLog, Prefix: `say "hi" \ `, Level: 2}},
				{Mark: ruleset.MarkMatch{Value: 1, Mask: 0xff}, Target: ruleset.Target{Action: ruleset.ActionRestoreMark}},
				{ConnMark: ruleset.MarkMatch{Value: 0x100, Mask: 0xff00, Not: true}, Target: ruleset.Target{Action: ruleset.ActionSetMark, Mark: 9}},
				{Proto: ruleset.UDP, Target: ruleset.Target{Action: ruleset.ActionTProxy, Port: 15006, Mark: 3}},
			}},
			{Table: ruleset.NAT, Name: ruleset.Output, Rules: []ruleset.Rule{
				{Owner: []ruleset.OwnerMatch{{Kind: ruleset.OwnerUID, First: 5, Last: 9}}, Target: ret},
				{Owner: []ruleset.OwnerMatch{{Kind: ruleset.OwnerGID, First: 5, Last: 9, Not: true}}, Target: ret},
				{Src: ruleset.MatchPrefix(from), Dst: ruleset.MatchPrefix(to), Target: ret},
				{Src: ruleset.PrefixMatch{Prefix: netip.PrefixFrom(from.Addr(), 21).Masked(), Not: true}, Target: ret},
				{Proto: ruleset.TCP, SrcPorts: ruleset.MatchPorts(ruleset.Port(1)), DstPorts: ruleset.MatchPorts(ruleset.Port(2)), Target: ret},
				{Proto: ruleset.TCP, SrcPorts: ruleset.PortMatch{Ranges: []ruleset.PortRange{{First: 1, Last: 9}}, Not: true}, Target: ret},
				{Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.PortRange{First: 1, Last: 9}), Target: ruleset.Target{}},
				{SrcType: ruleset.AddrTypeLocal, DstType: ruleset.AddrTypeNotLocal, Target: ret},
				{Proto: 47, Target: ret},
				{Out: ruleset.InterfaceMatch{Name: "eth0", Not: true}, Target: ret},
				{Out: ruleset.InterfaceMatch{Name: "eth+"}, Target: ret},
				{Out: ruleset.InterfaceMatch{Name: "abcdefghijklmn+", Not: true}, Target: ret},
				tcp(ruleset.Target{Action: ruleset.ActionDNAT, To: netip.AddrPortFrom(to.Addr(), 99)}),
				tcp(ruleset.Target{Action: ruleset.ActionDNAT, To: netip.AddrPortFrom(to.Addr(), 0)}),
				{Dst: ruleset.PrefixMatch{Prefix: netip.PrefixFrom(to.Addr(), 0).Masked(), Not: true}, Target: ret},
			}},
			{Table: ruleset.Filter, Name: ruleset.Input, Rules: []ruleset.Rule{{Comment: strings.Repeat(`"é`, 80), Target: ruleset.Target{Action: ruleset.ActionDrop}}}},
		} {
			own := ruleset.Chain{Table: c.Table, Name: p.Owner.Prefix + c.Name, Rules: c.Rules}
			c.Rules = []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: own.Name}}}
			p.Chains = append(p.Chains, c, own)
		}
		rs.Set(p)
	}
	return rs
}

func nftRulesets(t testing.TB) map[string]ruleset.Ruleset {
	all := map[string]ruleset.Ruleset{"everything": everything()}
	for name, r := range nftRedirects() {
		rs, err := r.Ruleset()
		require.NoError(t, err, name)
		all[name] = rs
	}
	return all
}

// nft runs the program in the namespace.
func nft(t testing.TB, ns *netnsexec.NetNS, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("nft", args...)
	var out strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	require.NoError(t, ns.Run(cmd), "nft %v: %s", args, &out)
	return out.String()
}

var nftHandle = regexp.MustCompile(`"handle": \d+`)

// listing is nft's own JSON of all there is, less handles. Sets and chains are
// listed in the order of their making, which is no part of their meaning.
func listing(t testing.TB, ns *netnsexec.NetNS) []string {
	t.Helper()
	var all struct{ NFTables []json.RawMessage }
	require.NoError(t, json.Unmarshal([]byte(nft(t, ns, "", "-j", "list", "ruleset")), &all))
	var out []string
	for _, o := range all.NFTables {
		if s := nftHandle.ReplaceAllString(string(o), `"handle": 0`); !strings.Contains(s, "metainfo") {
			out = append(out, s)
		}
	}
	return out
}

// TestNFTSameAsText: what the backend writes by netlink is what nft makes of
// the text, listed by nft rule by rule; and each takes the other's for its own.
func TestNFTSameAsText(t *testing.T) {
	for name, rs := range nftRulesets(t) {
		t.Run(name, func(t *testing.T) {
			byText, byNetlink := netnstest.New(t), netnstest.New(t)
			text := apply.NFT(rs)
			nft(t, byText, text, "-c", "-f", "-")
			assert.Empty(t, listing(t, byText))
			nft(t, byText, text, "-f", "-")
			nft(t, byText, text, "-f", "-") // it replaces itself

			ns := &noProcess{NetNS: byNetlink}
			b := apply.NewNFTables(ns)
			result, err := b.Apply(t.Context(), rs)
			require.NoError(t, err)
			assert.Equal(t, apply.Result{Backend: "nftables", Changed: true, Transactions: 1, Duration: result.Duration}, result)
			assert.Equal(t, listing(t, byText), listing(t, byNetlink))
			assert.Zero(t, ns.started)

			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			diffs, err = apply.NewNFTables(byText).Check(t.Context(), rs)
			require.NoError(t, err)
			for _, d := range diffs { // which no text for nft can hold
				assert.Equal(t, "routing", d.Table, d)
			}
			before := generation(t, byText)
			result, err = apply.NewNFTables(byText).Apply(t.Context(), rs)
			require.NoError(t, err)
			assert.Zero(t, result.Transactions)
			assert.Equal(t, before, generation(t, byText))
		})
	}
}

// TestNFTTransitions goes from each program to each other: one transaction,
// then none, and in the end nothing is left.
func TestNFTTransitions(t *testing.T) {
	all := nftRulesets(t)
	delete(all, "everything")    // another owner's
	delete(all, "proxy by mark") // another mark's
	ns := netnstest.New(t)
	b := apply.NewNFTables(&noProcess{NetNS: ns})
	foreign := "table inet other {\n\tset mesh {\n\t\ttype inet_service\n\t\telements = { 1 }\n\t}\n\n" +
		"\tchain nat/MESH_OUTPUT {\n\t\ttype nat hook output priority -100; policy accept;\n\t\ttcp dport @mesh redirect to :9\n\t}\n}\n" +
		"table ip nat {\n\tchain OUTPUT {\n\t\ttype nat hook output priority -100; policy accept;\n\t\ttcp dport 1 accept\n\t}\n}\n"
	nft(t, ns, foreign, "-f", "-")
	foreign = nft(t, ns, "", "list", "ruleset")
	require.NotEmpty(t, foreign)
	for from, a := range all {
		for to, z := range all {
			_, err := b.Apply(t.Context(), a)
			require.NoError(t, err)
			before := generation(t, ns)
			result, err := b.Apply(t.Context(), z)
			require.NoError(t, err, "%s -> %s", from, to)
			assert.Equal(t, from != to, result.Changed)
			changes := uint32(0)
			if from != to {
				changes = 1
			}
			assert.EqualValues(t, changes, result.Transactions, "%s -> %s", from, to)
			require.Equal(t, before+changes, generation(t, ns), "%s -> %s", from, to)
			diffs, err := b.Check(t.Context(), z)
			require.NoError(t, err)
			require.Empty(t, diffs, "%s -> %s", from, to)
		}
	}
	require.NoError(t, b.Remove(t.Context(), all["default"].Owner()))
	assert.Equal(t, foreign, nft(t, ns, "", "list", "ruleset"))
	before := generation(t, ns)
	require.NoError(t, b.Remove(t.Context(), all["default"].Owner()), "again")
	assert.Equal(t, before, generation(t, ns))
	for _, args := range []string{"rule", "-6 rule"} {
		assert.NotContains(t, ip(t, ns, args), "lookup 133")
	}
}

func ip(t testing.TB, ns *netnsexec.NetNS, args string) string {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command("ip", strings.Fields(args)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, ns.Run(cmd), &out)
	return out.String()
}
