//go:build linux

package apply_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Probes of the test world: what the application opens, what comes in, and what the proxy opens.
const (
	outward  = "pod tcp 1000/1000 -> 10.96.5.5:80"
	outward6 = "pod tcp 1000/1000 -> [fd00:10:96::5]:80"
	inward   = "out tcp 0/0 -> 10.244.1.5:8080"
	inward6  = "out tcp 0/0 -> [fd00:10:244::5]:8080"
)

// TestInForce: what is said of rules that are all there is what packets meet.
func TestInForce(t *testing.T) {
	netnstest.Require(t, netnstest.Binary("nft"), netnstest.Binary("iptables-nft"), netnstest.Binary("iptables-legacy"))
	natOut := func(rest string) []string { return []string{"iptables-nft -t nat -I OUTPUT 1 " + rest} }
	nftNat := func(family, priority, rule string) []string {
		return []string{"nft 'table " + family + " early { chain out { type nat hook output priority " + priority + "; " + rule + " ; } ; }'"}
	}
	for _, tt := range []struct {
		name     string
		backends string // those for which it is; empty: all
		do       []string
		change   func(*redirect.Redirect)
		before   bool   // somebody has done it before our rules come
		probe    string // those that go another way
		says     string // what Check says; empty: nothing
		unknown  bool
	}{
		{name: "nothing"},
		{name: "accepted before ours", backends: "iptables-nft", do: natOut("-p tcp -j ACCEPT"), probe: outward, says: "nat/OUTPUT:1 (-p tcp -j ACCEPT)"},
		{name: "returned before ours", backends: "iptables-nft", do: natOut("-p tcp --dport 80 -j RETURN"), probe: outward, says: "-p tcp -m tcp --dport 80 -j RETURN"},
		{name: "by a chain of others", backends: "iptables-nft", do: append([]string{"iptables-nft -t nat -N THEIRS", "iptables-nft -t nat -A THEIRS -m owner --uid-owner 1000 -j ACCEPT"}, natOut("-j THEIRS")...),
			probe: outward, says: "nat/THEIRS:1 (-m owner --uid-owner 1000 -j ACCEPT)"},
		{name: "to some addresses", backends: "iptables-nft", do: natOut("-d 10.96.0.0/12 -j ACCEPT"), probe: outward, says: "-d 10.96.0.0/12 -j ACCEPT"},
		{name: "for IPv6 alone", backends: "iptables-nft", do: []string{"ip6tables-nft -t nat -I OUTPUT 1 -p tcp -j ACCEPT"}, probe: outward6, says: "ipv6 outbound"},
		{name: "inbound", backends: "iptables-nft", do: []string{"iptables-nft -t nat -I PREROUTING 1 -i eth0 -j ACCEPT"}, probe: inward, says: "ipv4 inbound"},
		{name: "accepted by the same variant", backends: "iptables-legacy", do: []string{"iptables-legacy -t nat -I OUTPUT 1 -p tcp -j ACCEPT"}, probe: outward, says: "nat/OUTPUT:1 (-p tcp -j ACCEPT)"},
		{name: "accepted before they came", backends: "iptables-nft iptables-legacy", before: true, do: []string{"VARIANT -t nat -A OUTPUT -p tcp -j ACCEPT"}, probe: outward, says: "nat/OUTPUT:1 (-p tcp -j ACCEPT)"},
		{name: "accepted by iptables, which leaves the next base chain to us", backends: "nftables", do: natOut("-p tcp -j ACCEPT")},
		{name: "accepted by the other variant, likewise", backends: "iptables-legacy", do: []string{"nft 'table ip nat { chain OUTPUT { type nat hook output priority -100; meta l4proto tcp accept ; } ; }'"}},
		{name: "translated by an earlier chain", do: nftNat("ip", "-110", "tcp dport 80 dnat to 10.96.5.6:80"), probe: outward, says: "redirect 10.96.5.6:80"},
		{name: "translated by an earlier chain, before they came", before: true, do: nftNat("inet", "-110", "meta nfproto ipv4 tcp dport 80 dnat ip to 10.96.5.6:80"), probe: outward, says: "redirect 10.96.5.6:80"},
		{name: "translated by a later chain", do: nftNat("ip", "-90", "tcp dport 80 dnat to 10.96.5.6:80")},
		{name: "translated for a port that nobody uses", do: nftNat("ip", "-110", "udp dport 80 dnat to 10.96.5.6:80")},
		{name: "a dormant table", backends: "iptables-nft", do: []string{"nft add table ip nat '{ flags dormant ; }'"}, probe: outward + inward, says: "ip nat: it is dormant"},
		{name: "a dormant table of others", do: append(nftNat("ip", "-110", "tcp dport 80 dnat to 10.96.5.6:80"), "nft add table ip early '{ flags dormant ; }'")},
		{name: "not tracked", do: []string{"iptables-nft -t raw -I OUTPUT 1 -p tcp --dport 80 -j CT --notrack"}, probe: outward, says: "pass, wanted: redirect"},
		{name: "not tracked, by nftables", do: []string{"nft 'table inet early { chain out { type filter hook output priority -300; meta nfproto ipv4 tcp dport 80 notrack ; } ; }'"}, probe: outward, says: "pass, wanted: redirect"},
		{name: "dropped at filter OUTPUT", do: []string{"iptables-nft -A OUTPUT -p tcp --dport 15001 -j DROP"}, probe: outward, says: "drop, wanted: redirect"},
		{name: "dropped at filter OUTPUT by the port that it had", do: []string{"iptables-nft -A OUTPUT -p tcp --dport 80 -j DROP"}},
		{name: "a firewall for some packets", do: []string{
			"iptables-nft -A OUTPUT -p tcp --sport 7778 -j DROP", "iptables-nft -A OUTPUT -d 169.254.169.254/32 -j DROP",
			"nft 'table inet some { chain in { type filter hook input priority -150; tcp sport 7778 drop ; } ; chain pre { type filter hook prerouting priority -150; ip saddr 203.0.113.99 drop ; } ; }'",
		}},
		{name: "dropped by a policy", backends: "iptables-nft", do: []string{"nft 'table inet late { chain out { type filter hook output priority 10; policy drop; oifname lo accept ; } ; }'"},
			probe: outward + outward6 + inward + inward6, says: "chain out of table inet late: dropped by its policy"},
		{name: "refused", do: []string{"iptables-legacy -A OUTPUT -p tcp --dport 15001 -j REJECT"}, probe: outward, says: "drop, wanted: redirect"},
		{name: "what cannot be told", backends: "iptables-nft", do: natOut("-m statistic --mode nth --every 100000 --packet 99999 -j ACCEPT"), says: "-m statistic", unknown: true},
		{name: "what cannot be told and does not matter", do: []string{"iptables-nft -A OUTPUT -m statistic --mode nth --every 100000 --packet 99999 -j ACCEPT"}},
		{name: "the policy route", do: []string{"ip route flush table 133"}, change: func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }, says: "routing/route:1 missing"},
	} {
		for _, backend := range everyBackend {
			if tt.backends != "" && !strings.Contains(tt.backends, string(backend)) {
				continue
			}
			t.Run(tt.name+"/"+string(backend), func(t *testing.T) {
				t.Parallel()
				w := netnstest.NewWorld(t, netnstest.Options{})
				disturb := func() {
					for _, line := range tt.do {
						shell(t, w.Pod, strings.ReplaceAll(line, "VARIANT", string(backend)))
					}
				}
				r := dual()
				if tt.change != nil {
					tt.change(&r)
				}
				b := choose(t, w.Pod, backend)
				if tt.before {
					disturb()
				}
				result, err := b.Apply(t.Context(), r.MustRuleset())
				require.NoError(t, err)
				if !tt.before {
					assert.Empty(t, result.Past)
					disturb()
				}
				diffs, err := b.Check(t.Context(), r.MustRuleset())
				require.NoError(t, err)
				var text strings.Builder
				for _, d := range diffs {
					text.WriteString(d.String() + "\n")
				}
				switch {
				case tt.says == "":
					assert.Empty(t, diffs, text.String())
				case tt.unknown:
					assert.NotEmpty(t, diffs)
					assert.Empty(t, ruleset.Certain(diffs), text.String())
				default:
					assert.NotEmpty(t, ruleset.Certain(diffs), text.String())
				}
				assert.Contains(t, text.String(), tt.says)
				if tt.before {
					assert.Equal(t, diffs, result.Past)
				}
				var probes []netnstest.Probe
				for _, name := range []string{outward, outward6, inward, inward6} {
					p, err := netnstest.ParseProbe(name)
					require.NoError(t, err)
					probes = append(probes, p)
				}
				for probe, fate := range w.Run(probes) {
					assert.Equal(t, !strings.Contains(tt.probe, probe), strings.HasPrefix(fate, "proxy:"), "%s: %s", probe, fate)
				}
			})
		}
	}
}
