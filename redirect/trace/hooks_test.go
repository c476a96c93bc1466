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

// TestHooks: what others have put before our rules decides a packet's fate; what cannot be told is an error with the rule.
func TestHooks(t *testing.T) {
	ours := redirect.Default().MustRuleset()
	const out, in = "out tcp uid 1000 from 10.244.1.5:40000 -> 198.51.100.1:80", "in tcp from 10.0.0.9:40000 -> 10.244.1.5:8080"
	for _, tt := range []struct {
		name, iptables, nft, packet string
		want                        string // the fate, or what the error says
	}{
		{"nothing else", "", "", out, "redirect 15001"},
		{"accepted before", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", "", out, "pass"},
		{"accepted before, in another table", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT", "", out, "redirect 15001"},
		{"a chain that returns to it", "*nat\n:OUTPUT ACCEPT\n:O -\n-A OUTPUT -j O\n-A O -j RETURN\n-A OUTPUT -j MESH_OUTPUT", "", out, "redirect 15001"},
		{"not tracked", "*raw\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -m tcp --dport 80 -j CT --notrack\nCOMMIT", "", out, "pass"},
		{"another not tracked", "*raw\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -m tcp --dport 81 -j CT --notrack\nCOMMIT", "", out, "redirect 15001"},
		{"dropped after", "*filter\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j DROP\nCOMMIT", "", out, "drop"},
		{"refused after", "*filter\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j REJECT --reject-with icmp-port-unreachable\nCOMMIT", "", out, "drop"},
		{"dropped by policy", "*filter\n:OUTPUT DROP\n-A OUTPUT -p udp -j ACCEPT\nCOMMIT", "", out, "drop"},
		{"let through by a policy that drops", "*filter\n:OUTPUT DROP\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT", "", out, "redirect 15001"},
		{"table security drops", "*security\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j DROP\nCOMMIT", "", out, "drop"},
		{"inbound", "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -i eth0 -p tcp -j RETURN\n-A PREROUTING -j MESH_PREROUTING", "", in, "pass"},
		{"a match that is not known", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -m statistic --mode random --probability 0.5 -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", "", out,
			`nat/OUTPUT:1 (-m statistic --mode random --probability 0.5 -j ACCEPT): match "statistic"`},
		{"one of another protocol", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -p icmp -m icmp --icmp-type 8 -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", "", out, "redirect 15001"},
		{"one of another address", "*nat\n:OUTPUT ACCEPT\n-A OUTPUT -d 10.0.0.0/8 -m statistic --mode random --probability 0.5 -j ACCEPT\n-A OUTPUT -j MESH_OUTPUT", "", out, "redirect 15001"},
		{"one that does not matter", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -m statistic --mode random --probability 0.5 -j ACCEPT\nCOMMIT", "", out, "redirect 15001"},
		{"a target that is not known", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -p tcp -j TEE --gateway 10.0.0.1\nCOMMIT", "", out, `mangle/OUTPUT:1 (-p tcp -j TEE --gateway 10.0.0.1): `},
		{"a target that is not known, of others", "*mangle\n:OUTPUT ACCEPT\n-A OUTPUT -p udp -j TEE --gateway 10.0.0.1\nCOMMIT", "", out, "redirect 15001"},
		{"translated before, by nftables", "", "table ip early {\n chain out {\n type nat hook output priority -110; policy accept;\n tcp dport 80 dnat to 203.0.113.7:80\n }\n}", out, "redirect 203.0.113.7:80"},
		{"translated before, for IPv6", "", "table ip6 early {\n chain out {\n type nat hook output priority -110; policy accept;\n tcp dport 80 dnat to [2001:db8::7]:80\n }\n}", out, "redirect 15001"},
		{"translated after, by nftables", "", "table ip late {\n chain out {\n type nat hook output priority -90; policy accept;\n tcp dport 80 dnat to 203.0.113.7:80\n }\n}", out, "redirect 15001"},
		{"translated before or after", "", "table ip same {\n chain out {\n type nat hook output priority -100; policy accept;\n tcp dport 80 dnat to 203.0.113.7:80\n }\n}", out,
			"it is not known whether packets meet it before or after"},
		{"accepted before, by nftables", "", "table inet early {\n chain out {\n type nat hook output priority -110; policy accept;\n accept\n }\n}", out, "redirect 15001"},
		{"not tracked, by nftables", "", "table inet early {\n chain out {\n type filter hook output priority -300; policy accept;\n meta l4proto tcp notrack\n }\n}", out, "pass"},
		{"not tracked, too late", "", "table inet early {\n chain out {\n type filter hook output priority -50; policy accept;\n meta l4proto tcp notrack\n }\n}", out, "CT needs the raw table"},
		{"dropped in a nat chain", "", "table inet early {\n chain out {\n type nat hook output priority -110; policy accept;\n tcp dport 80 drop\n }\n}", out, "drop"},
		{"nftables' policy", "", "table inet late {\n chain out {\n type filter hook output priority 0; policy drop;\n udp dport 53 accept\n }\n}", out, "drop"},
		{"rejected by nftables", "", "table inet late {\n chain out {\n type filter hook output priority 0; policy accept;\n meta l4proto tcp reject\n }\n}", out, "drop"},
		{"a statement of nftables that is not known", "", "table inet late {\n chain out {\n type filter hook output priority 0; policy accept;\n meta l4proto tcp queue to 1\n }\n}", out, "queue"},
		{"a map of nftables", "", "table inet late {\n chain out {\n type filter hook output priority 0; policy accept;\n tcp dport vmap { 80 : drop, 443 : accept }\n }\n}", out, "vmap"},
		{"at another hook", "", "table inet late {\n chain out {\n type filter hook forward priority 0; policy drop;\n }\n}", in, "redirect 15006"},
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
			others, err := nft.ParseTables(tt.nft)
			require.NoError(t, err)
			hooks.Add(others)
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
