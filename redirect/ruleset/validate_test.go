package ruleset_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestValidate: each mistake in a hand-made ruleset has its words, and what a Redirect renders to has none.
func TestValidate(t *testing.T) {
	t.Parallel()
	whole := func() ruleset.Ruleset {
		r := redirect.Default()
		r.Mode, r.DropInvalid, r.IPv6 = redirect.ModeTProxy, true, redirect.FamilyDrop
		r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
		return r.MustRuleset()
	}
	require.NoError(t, whole().Validate())
	require.NoError(t, whole().Owner().EmptyRuleset().Validate())

	first := func(rs ruleset.Ruleset, table ruleset.Table, name string) *ruleset.Rule {
		return &rs.IPv4.Chain(table, name).Rules[0]
	}
	inOutput := func(change func(*ruleset.Rule)) func(*ruleset.Ruleset) {
		return func(rs *ruleset.Ruleset) { change(first(*rs, ruleset.NAT, "MESH_OUTPUT")) }
	}
	for want, spoil := range map[string]func(*ruleset.Ruleset){
		"are not in order": inOutput(func(r *ruleset.Rule) {
			r.Dst = ruleset.PrefixMatch{Prefix: netip.MustParsePrefix("10.0.0.0/8"), More: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
		}),
		"or they are negated": inOutput(func(r *ruleset.Rule) {
			r.Dst = ruleset.MatchPrefix(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("11.0.0.0/8"))
			r.Dst.Not = true
		}),
		"address fd00::/8 is not ipv4": inOutput(func(r *ruleset.Rule) {
			r.Src = ruleset.PrefixMatch{Prefix: netip.MustParsePrefix("10.0.0.0/8"), More: []netip.Prefix{netip.MustParsePrefix("fd00::/8")}}
		}),
		"it negates more ports": inOutput(func(r *ruleset.Rule) {
			r.Proto, r.DstPorts = ruleset.TCP, ruleset.PortMatch{Not: true}
			for p := uint16(1); p < 40; p += 2 {
				r.DstPorts.Ranges = append(r.DstPorts.Ranges, ruleset.Port(p))
			}
		}),
		"prefixes and ports in sets, and 100000 are the most": func(rs *ruleset.Ruleset) {
			var list []netip.Prefix
			for i := range 60_000 {
				list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
			}
			for i := range 2 {
				rs.IPv4.Chain(ruleset.NAT, "MESH_OUTPUT").Rules[i].Dst = ruleset.MatchPrefix(list...)
			}
		},
		"a program for neither family": func(rs *ruleset.Ruleset) { *rs = ruleset.Ruleset{} },
		"its program is of ipv4":       func(rs *ruleset.Ruleset) { rs.IPv6 = rs.IPv4 },
		`its owner has the prefix ""`:  func(rs *ruleset.Ruleset) { rs.IPv4.Owner.Prefix = "" },
		`its owner is "OTHER_"`:        func(rs *ruleset.Ruleset) { rs.IPv6.Owner.Prefix = "OTHER_" },
		"is there twice": func(rs *ruleset.Ruleset) {
			rs.IPv4.Chains = append(rs.IPv4.Chains, rs.IPv4.Chains[len(rs.IPv4.Chains)-1])
		},
		"neither built in nor": func(rs *ruleset.Ruleset) { rs.IPv4.Chain(ruleset.NAT, "MESH_OUTPUT").Name = "KUBE_X" },
		"is not in its place":  func(rs *ruleset.Ruleset) { c := rs.IPv4.Chains; c[0], c[len(c)-1] = c[len(c)-1], c[0] },
		"rule 1 of nat/OUTPUT: it does not jump": func(rs *ruleset.Ruleset) {
			first(*rs, ruleset.NAT, "OUTPUT").Target = ruleset.Target{Action: ruleset.ActionRedirect, Port: 15001}
		},
		`jumps to "MESH_NOWHERE"`: inOutput(func(r *ruleset.Rule) {
			r.Target = ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_NOWHERE"}
		}),
		`jumps to "OUTPUT"`:       inOutput(func(r *ruleset.Rule) { r.Target = ruleset.Target{Action: ruleset.ActionJump, Chain: "OUTPUT"} }),
		"jump in a circle":        inOutput(func(r *ruleset.Rule) { r.Target = ruleset.Target{Action: ruleset.ActionJump, Chain: "MESH_OUTPUT"} }),
		"address fd00::/8 is not": inOutput(func(r *ruleset.Rule) { r.Src.Prefix = netip.MustParsePrefix("fd00::/8") }),
		"not the name of an interface": inOutput(func(r *ruleset.Rule) {
			r.Out.Name = "lo -j ACCEPT"
		}),
		"ports of protocol 132": inOutput(func(r *ruleset.Rule) { r.Proto, r.DstPorts = 132, ruleset.MatchPorts(ruleset.Port(1)) }),
		"9:8 is no range": inOutput(func(r *ruleset.Rule) {
			r.Proto, r.DstPorts = ruleset.TCP, ruleset.MatchPorts(ruleset.PortRange{First: 9, Last: 8})
		}),
		"no range of owners": inOutput(func(r *ruleset.Rule) { r.Owner = []ruleset.OwnerMatch{{Kind: 9}} }),
		"tproxy is not for table nat": inOutput(func(r *ruleset.Rule) {
			r.Target = ruleset.Target{Action: ruleset.ActionTProxy, Port: 1}
		}),
		"redirect has no port": inOutput(func(r *ruleset.Rule) { r.Target = ruleset.Target{Action: ruleset.ActionRedirect} }),
		"no ipv4 address to rewrite": inOutput(func(r *ruleset.Rule) {
			r.Target = ruleset.Target{Action: ruleset.ActionDNAT, To: netip.MustParseAddrPort("[::1]:53")}
		}),
		"what a log line can begin with": inOutput(func(r *ruleset.Rule) {
			r.Target = ruleset.Target{Action: ruleset.ActionLog, Prefix: "a\nCOMMIT"}
		}),
		"which there is not": inOutput(func(r *ruleset.Rule) { r.Target.Action = 99 }),
	} {
		rs := whole()
		spoil(&rs)
		err := rs.Validate()
		require.Error(t, err, want)
		assert.ErrorContains(t, err, want)
	}
}

func BenchmarkValidate(b *testing.B) {
	rs := redirect.Default().MustRuleset()
	for b.Loop() {
		if err := rs.Validate(); err != nil {
			b.Fatal(err)
		}
	}
}
