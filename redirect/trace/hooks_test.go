package trace_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// native is a chain of nftables with at most one rule, as it is read from the kernel.
type native struct {
	table, typ, point string
	priority          int32
	policy, rule      string
}

func (n native) chains() ruleset.LiveChains {
	if n.table == "" {
		return nil
	}
	c := ruleset.LiveChain{Table: n.table, Name: "out", Policy: n.policy, Hook: &ruleset.Hook{Type: n.typ, Point: n.point, Priority: n.priority, Policy: n.policy}}
	var words []nft.Word
	for word := range strings.FieldsSeq(n.rule) {
		words = append(words, nft.Name(word))
	}
	if len(words) > 0 {
		r := new(nft.Reader).Read(strings.Fields(n.table)[0], words, nil)
		r.Table, r.Chain, r.Position = c.Table, c.Name, 1
		c.Rules = append(c.Rules, r)
	}
	return ruleset.LiveChains{c}
}

// TestHooks: what others have put before our rules decides a packet's fate; what cannot be told is an error with the rule.
func TestHooks(t *testing.T) {
	ours := redirect.Default().MustRuleset()
	const out, in = "out tcp uid 1000 from 10.244.1.5:40000 -> 198.51.100.1:80", "in tcp from 10.0.0.9:40000 -> 10.244.1.5:8080"
	for _, tt := range []struct {
		name, iptables string
		native         native
		packet         string
		want           string // the fate, or what the error says
	}{
		{"nothing else", "", native{}, out, "redirect 15001"},
		{"accepted before", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", native{}, out, "pass"},
		{"accepted before, in another table", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT", native{}, out, "redirect 15001"},
		{"a chain that returns to it", "*nat\n:OUTPUT ACCEPT\n:O -\n-A OUTPUT -j O\n-A O -j RETURN\n-A OUTPUT -j MESH_OUTPUT", native{}, out, "redirect 15001"},
		{"not tracked", "*raw\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -m tcp --dport 80 -j CT --notrack\nCOMMIT", native{}, out, "pass"},
		{"another not tracked", "*raw\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -m tcp --dport 81 -j CT --notrack\nCOMMIT", native{}, out, "redirect 15001"},
		{"dropped after", "*filter\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j DROP\nCOMMIT", native{}, out, "drop"},
		{"refused after", "*filter\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j REJECT --reject-with icmp-port-unreachable\nCOMMIT", native{}, out, "drop"},
		{"dropped by policy", "*filter\n:OUTPUT DROP\n-A OUTPUT -p udp -j ACCEPT\nCOMMIT", native{}, out, "drop"},
		{"let through by a policy that drops", "*filter\n:OUTPUT DROP\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT", native{}, out, "redirect 15001"},
		{"table security drops", "*security\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j DROP\nCOMMIT", native{}, out, "drop"},
		{"inbound", "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -i eth0 -p tcp -j RETURN\n-A PREROUTING -j MESH_PREROUTING", native{}, in, "pass"},
		{"a match that is not known", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -m statistic --mode random --probability 0.5 -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", native{}, out,
			`nat/OUTPUT:1 (-m statistic --mode random --probability 0.5 -j ACCEPT): match "statistic"`},
		{"one of another protocol", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -p icmp -m icmp --icmp-type 8 -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", native{}, out, "redirect 15001"},
		{"one of another address", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -d 10.0.0.0/8 -m statistic --mode random --probability 0.5 -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", native{}, out, "redirect 15001"},
		{"one that does not matter", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -m statistic --mode random --probability 0.5 -j ACCEPT\nCOMMIT", native{}, out, "redirect 15001"},
		{"a target that is not known", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j TEE --gateway 10.0.0.1\nCOMMIT", native{}, out, `mangle/OUTPUT:1 (-p tcp -j TEE --gateway 10.0.0.1): `},
		{"a target that is not known, of others", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -p udp -j TEE --gateway 10.0.0.1\nCOMMIT", native{}, out, "redirect 15001"},
		{"translated before, by nftables", "", native{"ip early", "nat", "output", -110, "accept", "meta l4proto tcp th dport 80 dnat to 203.0.113.7:80"}, out, "redirect 203.0.113.7:80"},
		{"translated before, for IPv6", "", native{"ip6 early", "nat", "output", -110, "accept", "meta l4proto tcp th dport 80 dnat to [2001:db8::7]:80"}, out, "redirect 15001"},
		{"translated after, by nftables", "", native{"ip late", "nat", "output", -90, "accept", "meta l4proto tcp th dport 80 dnat to 203.0.113.7:80"}, out, "redirect 15001"},
		{"translated before or after", "", native{"ip same", "nat", "output", -100, "accept", "meta l4proto tcp th dport 80 dnat to 203.0.113.7:80"}, out,
			"it is not known whether packets meet it before or after"},
		{"accepted before, by nftables", "", native{"inet early", "nat", "output", -110, "accept", "accept"}, out, "redirect 15001"},
		{"not tracked, by nftables", "", native{"inet early", "filter", "output", -300, "accept", "meta l4proto tcp notrack"}, out, "pass"},
		{"not tracked, too late", "", native{"inet early", "filter", "output", -50, "accept", "meta l4proto tcp notrack"}, out, "CT needs the raw table"},
		{"dropped in a nat chain", "", native{"inet early", "nat", "output", -110, "accept", "meta l4proto tcp th dport 80 drop"}, out, "drop"},
		{"nftables' policy", "", native{"inet late", "filter", "output", 0, "drop", "meta l4proto udp th dport 53 accept"}, out, "drop"},
		{"rejected by nftables", "", native{"inet late", "filter", "output", 0, "accept", "meta l4proto tcp reject"}, out, "drop"},
		{"a statement of nftables that is not known", "", native{"inet late", "filter", "output", 0, "accept", "meta l4proto tcp queue to 1"}, out, "queue"},
		{"a map of nftables", "", native{"inet late", "filter", "output", 0, "accept", "meta l4proto tcp th dport map @verdicts"}, out, "map"},
		{"at another hook", "", native{"inet late", "filter", "forward", 0, "drop", ""}, in, "redirect 15006"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := ours.IPv4.String()
			if chain, rules, ok := strings.Cut(tt.iptables, "-A OUTPUT -j MESH_OUTPUT"); ok {
				text = strings.Replace(text, "-A OUTPUT -j MESH_OUTPUT\n", strings.SplitAfterN(chain+rules, "\n", 3)[2]+"-A OUTPUT -j MESH_OUTPUT\n", 1)
			} else if chain, rules, ok := strings.Cut(tt.iptables, "-A PREROUTING -j MESH_PREROUTING"); ok {
				text = strings.Replace(text, "-A PREROUTING -j MESH_PREROUTING\n", strings.SplitAfterN(chain+rules, "\n", 3)[2]+"-A PREROUTING -j MESH_PREROUTING\n", 1)
			} else {
				text += tt.iptables + "\n"
			}
			var hooks trace.Hooks
			chains, err := ruleset.Parse(ruleset.IPv4, text)
			require.NoError(t, err, text)
			hooks.Add(chains)
			hooks.Add(tt.native.chains())
			p, err := trace.ParsePacket(tt.packet)
			require.NoError(t, err)
			got, err := hooks.Trace(p)
			if err != nil {
				var unmodelled *trace.UnmodelledError
				require.ErrorAs(t, err, &unmodelled)
				assert.ErrorContains(t, err, tt.want)
				return
			}
			assert.Equal(t, tt.want, got.String(), got.Explain())
		})
	}
}
