package redirect_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var zeroPrefix netip.Prefix

// redirects draws from what a Redirect can be and still be valid; see also
// internal/testing/difftest.
func redirects() *rapid.Generator[redirect.Redirect] {
	return rapid.Custom(func(t *rapid.T) redirect.Redirect {
		family := rapid.SampledFrom([]redirect.FamilyMode{redirect.FamilyCapture, redirect.FamilyCapture, redirect.FamilyPass, redirect.FamilyDrop})
		r := redirect.Redirect{
			Mode: rapid.SampledFrom([]redirect.Mode{redirect.ModeRedirect, redirect.ModeTProxy}).Draw(t, "mode"),
			IPv4: family.Draw(t, "ipv4"),
			IPv6: family.Draw(t, "ipv6"),
			Proxy: redirect.Proxy{
				UIDs:         ids(1).Draw(t, "uids"),
				GIDs:         ids(0).Draw(t, "gids"),
				OutboundPort: 15001,
				InboundPort:  rapid.Uint16Range(15002, 15010).Draw(t, "inbound port"),
				TunnelPort:   rapid.SampledFrom([]uint16{0, 15008}).Draw(t, "tunnel"),
				PassSources: rapid.SampledFrom([][]netip.Addr{
					nil, {netip.MustParseAddr("127.0.0.6")}, {netip.MustParseAddr("::6"), netip.MustParseAddr("127.0.0.6")},
				}).Draw(t, "sources"),
			},
			Inbound: redirect.Inbound{Ports: ports().Draw(t, "in"), ExcludePorts: ports().Draw(t, "not in")},
			Outbound: redirect.Outbound{
				CIDRs:        prefixes(true).Draw(t, "cidrs"),
				ExcludeCIDRs: prefixes(false).Draw(t, "not cidrs"),
				Ports:        ports().Draw(t, "out"),
				ExcludePorts: ports().Draw(t, "not out"),
				DropUDPPorts: ports().Draw(t, "dropped udp"),
			},
			IncludeInterfaces: rapid.SampledFrom([][]string{nil, {"eth0"}, {"eth0", "net9"}}).Draw(t, "only interfaces"),
			ExcludeInterfaces: interfaces().Draw(t, "not interfaces"),
			VirtualInterfaces: interfaces().Draw(t, "virtual interfaces"),
			DropInvalid:       rapid.Bool().Draw(t, "drop invalid"),
			Names:             redirect.Default().Names,
		}
		if r.IPv4 == redirect.FamilyPass && r.IPv6 == redirect.FamilyPass {
			r.IPv4 = redirect.FamilyCapture
		}
		if r.Outbound.CIDRs.IsZero() {
			r.Outbound.CIDRs = redirect.NoPrefixes()
		}
		r.Names.ChainPrefix = rapid.SampledFrom([]string{"MESH_", "X", "SIXTEEN_BYTES_00"}).Draw(t, "prefix")
		switch rapid.IntRange(0, 2).Draw(t, "groups") {
		case 1:
			r.Outbound.OwnerGroups = ids(1).Draw(t, "only")
		case 2:
			r.Outbound.ExcludeOwnerGroups = ids(1).Draw(t, "except")
		}
		if rapid.Bool().Draw(t, "dns") {
			r.DNS = redirect.DNS{Servers: prefixes(true).Draw(t, "servers"), Port: 15053}
		}
		return r
	})
}

func ids(atLeast int) *rapid.Generator[[]uint32] {
	return rapid.SliceOfNDistinct(rapid.Uint32Max(redirect.NoID-1), atLeast, 4, rapid.ID[uint32])
}

func ports() *rapid.Generator[redirect.PortSet] {
	return rapid.Custom(func(t *rapid.T) redirect.PortSet {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return redirect.AllPorts()
		case 1:
			return redirect.NoPorts()
		case 2:
			return redirect.Ports(rapid.SliceOfN(rapid.Uint16(), 1, 40).Draw(t, "ports")...)
		}
		return redirect.PortRanges(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ruleset.PortRange {
			first := rapid.Uint16().Draw(t, "first")
			return ruleset.PortRange{First: first, Last: rapid.Uint16Min(first).Draw(t, "last")}
		}), 1, 20).Draw(t, "ranges")...)
	})
}

func prefixes(orAll bool) *rapid.Generator[redirect.PrefixSet] {
	return rapid.Custom(func(t *rapid.T) redirect.PrefixSet {
		if orAll && rapid.Bool().Draw(t, "all") {
			return redirect.AllPrefixes()
		}
		return redirect.Prefixes(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Prefix {
			var a netip.Addr
			if rapid.Bool().Draw(t, "v4") {
				a = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr")))
			} else {
				a = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "addr")))
			}
			return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
		}), 0, rapid.SampledFrom([]int{5, 5, 5, 60}).Draw(t, "most")).Draw(t, "prefixes")...)
	})
}

func interfaces() *rapid.Generator[[]string] {
	return rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zA-Z][a-zA-Z0-9._-]{0,14}`), 0, 3, rapid.ID[string])
}

// TestJSONRoundTrip: a Redirect survives JSON, and its rules do too.
func TestJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := redirects().Draw(t, "redirect")
		b, err := json.Marshal(r)
		require.NoError(t, err)
		var back redirect.Redirect
		require.NoError(t, json.Unmarshal(b, &back))
		again, err := json.Marshal(back)
		require.NoError(t, err)
		require.JSONEq(t, string(b), string(again))

		rs := r.MustRuleset()
		require.True(t, rs.Equal(back.MustRuleset()), "%s", b)

		b, err = json.Marshal(rs)
		require.NoError(t, err)
		var rules ruleset.Ruleset
		require.NoError(t, json.Unmarshal(b, &rules))
		require.True(t, rs.Equal(rules), "%s", b)
		require.Equal(t, rs, rules, "comments and owner survive too")
	})
}

// TestRenderParseRender: the text of a program is parsed back as that program,
// and where it is in force there is nothing to change.
func TestRenderParseRender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { rendersToItself(t, redirects().Draw(t, "redirect")) })
}

func rendersToItself(t require.TestingT, r redirect.Redirect) {
	rs, err := r.Ruleset()
	require.NoError(t, err)
	require.NoError(t, rs.Validate())
	plain, err := rs.Iptables()
	require.NoError(t, err)
	require.True(t, plain.IPv4.String() == rs.IPv4.String() && plain.IPv6.String() == rs.IPv6.String(), "what iptables has is what is written for it")
	for _, f := range ruleset.Families {
		p := rs.Family(f)
		if p == nil {
			continue
		}
		text := p.String()
		require.Equal(t, text, r.MustRuleset().Family(f).String(), "the same Redirect gave other rules")
		saved, err := ruleset.Parse(f, text)
		require.NoError(t, err)
		require.Empty(t, p.Diff(saved), "%s", text)
		require.Empty(t, p.Transition(saved), "%s", text)
		commented, err := ruleset.Parse(f, p.Commented())
		require.NoError(t, err)
		require.Equal(t, saved, commented, "comments change the meaning")
		for _, c := range plain.Family(f).Chains {
			for _, rule := range c.Rules {
				parsed, err := ruleset.ParseRule(f, rule.Text(f))
				require.NoError(t, err, "%s", rule.Text(f))
				require.True(t, rule.Equal(parsed), "%s is read as %s", rule.Text(f), parsed.Text(f))
				require.Equal(t, rule.Text(f), parsed.Text(f))
				require.False(t, rule.Target.Action == ruleset.ActionJump && p.Chain(c.Table, rule.Target.Chain) == nil,
					"%s jumps nowhere", rule.Text(f))
			}
			require.NotEmpty(t, c.Rules, "chain %s is empty", c.Name)
			require.LessOrEqual(t, len(c.Name), 28, "iptables takes no longer names")
			if chains.IsBuiltin(c.Name) {
				for _, rule := range c.Rules {
					require.True(t, strings.HasPrefix(rule.Target.Chain, p.Owner.Prefix+c.Name), "%s jumps to %s", c.Name, rule.Target.Chain)
					require.True(t, rule.Equal(ruleset.Rule{In: rule.In, Out: rule.Out, Target: ruleset.Target{Action: ruleset.ActionJump, Chain: rule.Target.Chain}}),
						"%s holds more than the jump", c.Name)
				}
			}
		}
	}
}

func TestCloneSharesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := redirects().Draw(t, "redirect")
		before := r.MustRuleset().String()
		c := r.Clone()
		for _, ids := range [][]uint32{c.Proxy.UIDs, c.Proxy.GIDs, c.Outbound.OwnerGroups, c.Outbound.ExcludeOwnerGroups} {
			for i := range ids {
				ids[i]++
			}
		}
		for i := range c.Proxy.PassSources {
			c.Proxy.PassSources[i] = netip.Addr{}
		}
		for _, names := range [][]string{c.ExcludeInterfaces, c.VirtualInterfaces} {
			for i := range names {
				names[i] = "changed"
			}
		}
		require.Equal(t, before, r.MustRuleset().String())
	})
}
