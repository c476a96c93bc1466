package redirect_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/rulesettest"
	"github.com/meshcni/meshcni/redirect/trace"
)

func ownChain(t ruleset.Table, name string, rules ...ruleset.Rule) ruleset.Chain {
	return ruleset.Chain{Table: t, Name: name, Rules: rules}
}

var (
	quic    = ruleset.Rule{Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(443)), Target: ruleset.Target{Action: ruleset.ActionDrop}}
	syslog  = ruleset.Rule{Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(514)), Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 7514}}
	special = ruleset.Rule{
		Proto: ruleset.TCP, Dst: ruleset.MatchPrefix(netip.MustParsePrefix("192.0.2.7/32")),
		Target: ruleset.Target{Action: ruleset.ActionDNAT, To: netip.MustParseAddrPort("10.0.0.9:8443")},
	}
)

// TestOwnRules: what no field says is a chain of the mesh's own, before the Redirect's rules, after them or instead of them, for the tracer as
// for what renders.
func TestOwnRules(t *testing.T) {
	r := redirect.Default()
	r.Outbound.ExcludePorts = redirect.Ports(25)
	r.Own = []ruleset.Chain{
		ownChain(ruleset.Mangle, "MESH_OUTPUT_FIRST", quic),
		ownChain(ruleset.NAT, "MESH_OUTPUT_FIRST", special, ruleset.Rule{Proto: ruleset.UDP, Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_DATAGRAMS"}}),
		ownChain(ruleset.NAT, "MESH_DATAGRAMS", syslog),
		ownChain(ruleset.NAT, "MESH_OUTPUT_LAST", ruleset.Rule{
			Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(25)), Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: 7025},
		}),
	}
	rs := r.MustRuleset()
	require.NoError(t, rs.Validate())
	rulesettest.New(t, rs, "10.244.1.5", "fd00::5").Table(`
		out udp uid 1000 -> 10.0.0.1:443    => drop
		out udp uid 1000 -> [2001:db8::1]:443 => drop
		out udp uid 1000 -> 10.0.0.1:514    => redirect 7514
		out tcp uid 1000 -> 10.0.0.1:443    => redirect 15001
		out tcp uid 1000 -> 10.0.0.1:25     => redirect 7025
		out tcp uid 1000 -> [2001:db8::1]:25 => redirect 7025
		in  tcp -> 10.244.1.5:8080          => redirect 15006
	`)
	assert.Contains(t, rs.IPv4.String(), "-A OUTPUT -j MESH_OUTPUT_FIRST\n-A OUTPUT -j MESH_OUTPUT\n-A OUTPUT -j MESH_OUTPUT_LAST\n")
	assert.Contains(t, rs.IPv4.String(), "-d 192.0.2.7/32 -p tcp -j DNAT --to-destination 10.0.0.9:8443")
	assert.NotContains(t, rs.IPv6.String(), "DNAT", "a rule with an address is for its family")
	assert.Contains(t, rs.IPv4.Commented(), "# rule of the mesh's own\n-A MESH_DATAGRAMS")

	// Live rules are compared as ours are: nothing differs, and nothing is taken for an init container's.
	for _, f := range ruleset.Families {
		live, err := ruleset.Parse(f, rs.Family(f).String())
		require.NoError(t, err)
		assert.Empty(t, rs.Family(f).Diff(live))
		assert.Empty(t, rs.Family(f).Transition(live))
		without := strings.Replace(rs.Family(f).String(), "-A MESH_DATAGRAMS -p udp -m udp --dport 514 -j REDIRECT --to-ports 7514\n", "", 1)
		live, err = ruleset.Parse(f, without)
		require.NoError(t, err)
		assert.Len(t, rs.Family(f).Diff(live), 1)
		live, err = ruleset.Parse(f, rs.Family(f).String()+"*mangle\n-A PREROUTING -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n")
		require.NoError(t, err)
		assert.Empty(t, rs.Family(f).Diff(live), "a rule of others stays theirs")
	}

	var again redirect.Redirect
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &again))
	assert.True(t, again.MustRuleset().Equal(rs), "JSON loses nothing")
	clone := r.Clone()
	clone.Own[2].Rules[0].Target.Port = 1
	assert.Equal(t, uint16(7514), r.Own[2].Rules[0].Target.Port)
}

// TestOwnAtOtherHooks: rules of the mesh's own stand at each hook that the table has, and the tracer meets them there, with what is live as with
// what is wanted.
func TestOwnAtOtherHooks(t *testing.T) {
	drop := func(port uint16) ruleset.Rule {
		return ruleset.Rule{Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(port)), Target: ruleset.Target{Action: ruleset.ActionDrop}}
	}
	r := redirect.Default()
	r.Outbound.ExcludePorts = redirect.Ports(3306, 3307)
	r.Own = []ruleset.Chain{
		ownChain(ruleset.Mangle, "MESH_INPUT_FIRST", drop(15006)), ownChain(ruleset.Mangle, "MESH_FORWARD", drop(9999)),
		ownChain(ruleset.Mangle, "MESH_POSTROUTING_LAST", drop(3307)),
		ownChain(ruleset.NAT, "MESH_POSTROUTING_FIRST", ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionReturn}}),
		ownChain(ruleset.NAT, "MESH_INPUT", ruleset.Rule{Proto: ruleset.UDP, Target: ruleset.Target{Action: ruleset.ActionReturn}}),
	}
	rs := r.MustRuleset()
	require.NoError(t, rs.Validate())
	rulesettest.New(t, rs, "10.244.1.5", "fd00::5").Table(`
		out tcp uid 1000 -> 10.0.0.1:3306 => pass
		out tcp uid 1000 -> 10.0.0.1:3307 => drop
		out tcp uid 1000 -> [2001:db8::1]:3307 => drop
		out tcp uid 1000 -> 10.0.0.1:9999 => redirect 15001
		in  tcp -> 10.244.1.5:8080        => drop
		in  tcp -> 10.244.1.77:9999       => drop
	`)
	assert.Contains(t, rs.IPv6.String(), "-A POSTROUTING -j MESH_POSTROUTING_LAST\n")
	for _, f := range ruleset.Families {
		live, err := ruleset.Parse(f, rs.Family(f).String())
		require.NoError(t, err)
		assert.Empty(t, rs.Family(f).Diff(live))
		assert.Empty(t, rs.Family(f).Transition(live))
		gone, err := ruleset.Parse(f, strings.Replace(rs.Family(f).String(), "-A INPUT -j MESH_INPUT_FIRST\n", "", 1))
		require.NoError(t, err)
		assert.NotEmpty(t, rs.Family(f).Diff(gone))
	}
	var hooks trace.Hooks
	hooks.AddRules(rs)
	for packet, want := range map[string]string{"out tcp uid 1000 -> 10.0.0.1:3307": "drop", "out tcp uid 1000 -> 10.0.0.1:3306": "pass", "in tcp -> 10.244.1.5:8080": "drop"} {
		p, err := trace.ParsePacket(packet)
		require.NoError(t, err)
		got, err := hooks.Trace(p)
		require.NoError(t, err)
		assert.Contains(t, got.String(), want, packet)
	}
}

// TestOwnOfAny: whatever the Redirect, its rules with the mesh's own are valid, read back as they are, and nothing of them differs.
func TestOwnOfAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := redirects().Draw(t, "redirect")
		r.Names.ChainPrefix = "X_"
		point := rapid.SampledFrom([]string{"X_OUTPUT", "X_OUTPUT_FIRST", "X_OUTPUT_LAST", "X_PREROUTING", "X_PREROUTING_LAST"}).Draw(t, "point")
		other := rapid.SampledFrom([]string{"X_INPUT", "X_FORWARD_FIRST", "X_POSTROUTING", "X_POSTROUTING_LAST", "X_OUTPUT_FIRST"}).Draw(t, "other")
		r.Own = []ruleset.Chain{ownChain(ruleset.Mangle, other, quic), ownChain(ruleset.NAT, point, syslog, special)}
		if r.Validate() != nil {
			return // a drawn list does not go with the rest
		}
		rs := r.MustRuleset()
		require.NoError(t, rs.Validate())
		for _, f := range ruleset.Families {
			if p := rs.Family(f); p != nil {
				live, err := ruleset.Parse(f, p.String())
				require.NoError(t, err)
				require.Empty(t, p.Diff(live))
				require.Empty(t, p.Transition(live))
			}
		}
	})
}

// TestOwnInstead: a chain of the name of the hook's takes its place, and those that only the Redirect's led to are gone.
func TestOwnInstead(t *testing.T) {
	r := redirect.Default()
	r.Own = []ruleset.Chain{ownChain(ruleset.NAT, "MESH_OUTPUT",
		ruleset.Rule{Owner: []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.OwnerUID, 1337)}, Target: ruleset.Target{Action: ruleset.ActionReturn}},
		ruleset.Rule{Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(80)), Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_REDIRECT"}},
	)}
	rs := r.MustRuleset()
	require.NoError(t, rs.Validate())
	rulesettest.New(t, rs, "10.244.1.5").Table(`
		out tcp uid 1000 -> 10.0.0.1:80  => redirect 15001
		out tcp uid 1337 -> 10.0.0.1:80  => pass
		out tcp uid 1000 -> 10.0.0.1:443 => pass
		in  tcp -> 10.244.1.5:8080       => redirect 15006
	`)
	r.Own[0].Rules = r.Own[0].Rules[:1]
	assert.NotContains(t, r.MustRuleset().IPv4.String(), ":MESH_REDIRECT", "nothing leads there any more")
}

// TestOwnIsChecked: what another could be hurt by, or the kernel does not take, is refused with its place.
func TestOwnIsChecked(t *testing.T) {
	at := func(table ruleset.Table, name string, rules ...ruleset.Rule) []ruleset.Chain {
		return []ruleset.Chain{ownChain(table, name, rules...)}
	}
	jump := func(to string) ruleset.Rule {
		return ruleset.Rule{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: to}}
	}
	ports := make([]ruleset.PortRange, 16)
	for i := range ports {
		ports[i] = ruleset.Port(uint16(i + 1))
	}
	for want, own := range map[string][]ruleset.Chain{
		`chain "OUTPUT" is not MESH_`:                         at(ruleset.NAT, "OUTPUT", syslog),
		`chain "KUBE_OUTPUT_FIRST" is not MESH_`:              at(ruleset.NAT, "KUBE_OUTPUT_FIRST", syslog),
		"chain MESH_IN_REDIRECT is one of the Redirect's":     at(ruleset.NAT, "MESH_IN_REDIRECT", syslog),
		"table filter is not raw, mangle or nat":              at(ruleset.Filter, "MESH_OUTPUT_FIRST", quic),
		"has no rule":                                         at(ruleset.NAT, "MESH_OUTPUT_FIRST"),
		"nothing leads to chain MESH_QUIC":                    at(ruleset.Mangle, "MESH_QUIC", quic),
		"target drop is not for table nat":                    at(ruleset.NAT, "MESH_OUTPUT_FIRST", quic),
		"which is no chain of the program's in that table":    at(ruleset.NAT, "MESH_OUTPUT_FIRST", jump("MESH_ELSEWHERE")),
		"chains jump in a circle":                             at(ruleset.NAT, "MESH_OUTPUT_FIRST", jump("MESH_OUTPUT_FIRST")),
		"an owner, whom nothing that arrives has":             at(ruleset.NAT, "MESH_PREROUTING_FIRST", ruleset.Rule{Owner: []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.OwnerUID, 1)}, Target: syslog.Target, Proto: ruleset.UDP}),
		"table nat has no FORWARD":                            at(ruleset.NAT, "MESH_FORWARD", quic),
		"table raw has no INPUT":                              at(ruleset.Raw, "MESH_INPUT_FIRST", quic),
		"at INPUT it has the interface that a packet leaves":  at(ruleset.Mangle, "MESH_INPUT", ruleset.Rule{Out: ruleset.InterfaceMatch{Name: "eth0"}}),
		"at POSTROUTING it has a target that changes":         at(ruleset.NAT, "MESH_POSTROUTING", ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_REDIRECT"}}),
		"the interface that a packet came in by":              at(ruleset.NAT, "MESH_OUTPUT_LAST", ruleset.Rule{In: ruleset.InterfaceMatch{Name: "eth0"}}),
		"its ports take more than the 15 slots":               at(ruleset.Mangle, "MESH_OUTPUT_FIRST", ruleset.Rule{Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ports...)}),
		"is there twice in table nat":                         append(at(ruleset.NAT, "MESH_OUTPUT_FIRST", syslog), at(ruleset.NAT, "MESH_OUTPUT_FIRST", syslog)...),
		"1001 rules; at most 1000 are allowed":                at(ruleset.NAT, "MESH_OUTPUT_FIRST", make([]ruleset.Rule, 1001)...),
		"rule 1: the kernel would not show it as it is":       at(ruleset.NAT, "MESH_OUTPUT_FIRST", ruleset.Rule{ConnMark: ruleset.MarkMatch{Value: 1}}),
		"its comment is not at most 120 printable characters": at(ruleset.NAT, "MESH_OUTPUT_FIRST", ruleset.Rule{Comment: "a\nb"}),
		"20000 rules; at most 1000 are allowed":               at(ruleset.NAT, "MESH_OUTPUT_FIRST", make([]ruleset.Rule, 20_000)...),
	} {
		r := redirect.Default()
		r.Own = own
		err := r.Validate()
		var field *redirect.FieldError
		if assert.ErrorAs(t, err, &field, want) {
			assert.True(t, strings.HasPrefix(field.Field, "own"), field.Field)
			assert.ErrorContains(t, err, want)
		}
	}
}

// TestUDPIsDropped: HTTP/3 falls back to TCP, which is redirected; all else of UDP is as it was.
func TestUDPIsDropped(t *testing.T) {
	r := redirect.Default()
	r.Outbound.DropUDPPorts = redirect.AllPorts()
	r.Outbound.PassUDPPorts = redirect.Ports(123)
	r.Outbound.ExcludePorts = redirect.Ports(8125)
	r.Outbound.ExcludeCIDRs = redirect.Prefixes(netip.MustParsePrefix("203.0.113.0/24"))
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	rulesettest.New(t, r.MustRuleset(), "10.244.1.5", "fd00::5").Table(`
		out udp uid 1000 -> 10.0.0.1:443      => drop
		out udp uid 1000 -> [2001:db8::1]:443 => drop
		out tcp uid 1000 -> 10.0.0.1:443      => redirect 15001
		out udp uid 1337 -> 10.0.0.1:443      => pass
		out udp uid 1000 -> 10.0.0.1:123      => pass
		out udp uid 1000 -> 10.0.0.1:8125     => pass
		out udp uid 1000 -> 203.0.113.9:443   => pass
		out udp uid 1000 -> 10.0.0.1:53       => redirect 15053
		out udp uid 1000 -> 10.244.1.5:9999   => pass
	`)
	r.Outbound.DropUDPPorts = redirect.PortSet{}
	assert.ErrorContains(t, r.Validate(), "outbound.passUDPPorts: means nothing without outbound.dropUDPPorts")
}

// TestOutboundOnly: a mesh that redirects nothing inbound has no inbound port to make up.
func TestOutboundOnly(t *testing.T) {
	r := redirect.Default()
	r.Inbound.Ports, r.Proxy.InboundPort = redirect.NoPorts(), 0
	rs := r.MustRuleset()
	rulesettest.New(t, rs, "10.244.1.5", "fd00::5").Table(`
		out tcp uid 1000 -> 10.0.0.1:443    => redirect 15001
		out tcp uid 1337 -> 10.0.0.1:443    => pass
		out tcp uid 1337 -> 10.244.1.5:8080 => pass
		in  tcp -> 10.244.1.5:8080          => pass
	`)
	assert.NotContains(t, rs.String(), "IN_REDIRECT")
	r.Inbound.Ports = redirect.Ports(80)
	assert.ErrorContains(t, r.Validate(), "proxy.inboundPort: 0 is no port")
}

// TestIncludedInterfaces: what comes or goes by another interface is left alone.
func TestIncludedInterfaces(t *testing.T) {
	r := redirect.Default()
	r.IncludeInterfaces = []string{"eth0", "net1"}
	rs := r.MustRuleset()
	require.NoError(t, rs.Validate())
	rules := rulesettest.New(t, rs, "10.244.1.5", "fd00::5")
	rules.Table(`
		out tcp uid 1000 -> 10.0.0.1:443      => redirect 15001
		in  tcp -> 10.244.1.5:8080            => redirect 15006
	`)
	text := rs.IPv4.String()
	assert.Contains(t, text, "-A OUTPUT -o lo -j MESH_OUTPUT\n-A OUTPUT -o eth0 -j MESH_OUTPUT\n-A OUTPUT -o net1 -j MESH_OUTPUT\n")
	assert.Contains(t, text, "-A PREROUTING -i net1 -j MESH_PREROUTING\n")
	live, err := ruleset.Parse(ruleset.IPv4, text)
	require.NoError(t, err)
	assert.Empty(t, rs.IPv4.Diff(live))
	r.IncludeInterfaces = make([]string, 100_000)
	assert.ErrorContains(t, r.Validate(), "100000 interfaces; at most 64 are allowed")
}

// FuzzOwn: chains of a mesh's own that are accepted are rules that the kernel takes, and are read back as they are.
func FuzzOwn(f *testing.F) {
	for _, own := range [][]ruleset.Chain{
		{ownChain(ruleset.Mangle, "MESH_OUTPUT_FIRST", quic)},
		{ownChain(ruleset.NAT, "MESH_OUTPUT_LAST", syslog, special), ownChain(ruleset.NAT, "MESH_PREROUTING", syslog)},
		{ownChain(ruleset.NAT, "MESH_OUTPUT", ruleset.Rule{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_X"}}), ownChain(ruleset.NAT, "MESH_X", special)},
		{ownChain(ruleset.Raw, "MESH_PREROUTING_FIRST", ruleset.Rule{
			Src: ruleset.MatchPrefix(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("11.0.0.0/8")), Target: ruleset.Target{Action: ruleset.ActionNoTrack},
		})},
	} {
		b, err := json.Marshal(own)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := redirect.Default()
		if json.Unmarshal(b, &r.Own) != nil || r.Validate() != nil {
			return
		}
		rs := r.MustRuleset()
		require.NoError(t, rs.Validate())
		for _, f := range ruleset.Families {
			live, err := ruleset.Parse(f, rs.Family(f).String())
			require.NoError(t, err)
			require.Empty(t, rs.Family(f).Diff(live), "%s", rs)
		}
	})
}
