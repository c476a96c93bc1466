//go:build linux

package apply_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/coreos/go-iptables/iptables"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestWitness: what go-iptables lists of each chain is the program, rule for rule.
func TestWitness(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		for name, r := range nftRedirects() {
			if name == "many ports" {
				continue // a process for each chain, and nothing new
			}
			rs, err := r.Ruleset()
			require.NoError(t, err, name)
			ns := netnstest.New(t)
			b, err := apply.NewIPTables(ns, v, apply.Options{Runner: ns.Sandbox()})
			require.NoError(t, err)
			_, err = b.Apply(t.Context(), rs)
			require.NoError(t, err, name)
			rs, err = rs.Iptables()
			require.NoError(t, err, name)
			for _, f := range ruleset.Families {
				p := rs.Family(f)
				if p == nil {
					continue
				}
				for _, c := range p.Chains {
					var want []string
					for _, r := range c.Rules {
						want = append(want, "-A "+c.Name+" "+r.Text(f))
					}
					assert.Equal(t, want, listed(t, ns, v, f, c.Table.String(), c.Name), "%s: %s %s", name, f, c.Name)
				}
			}
		}
	})
}

func listed(t testing.TB, ns apply.Namespace, v ruleset.Backend, f ruleset.Family, table, chain string) (rules []string) {
	t.Helper()
	program, family := string(v), iptables.ProtocolIPv4
	if f == ruleset.IPv6 {
		program, family = "ip6"+program[len("ip"):], iptables.ProtocolIPv6
	}
	require.NoError(t, ns.Do(func() error {
		ipt, err := iptables.New(iptables.Path(program), iptables.IPFamily(family))
		if err != nil {
			return err
		}
		rules, err = ipt.List(table, chain)
		return err
	}))
	require.NotEmpty(t, rules)
	return rules[1:] // the first declares the chain
}

// ofTable are the live rules of one table of one family.
func ofTable(rules []ruleset.LiveRule, f ruleset.Family, table string) (found []ruleset.LiveRule) {
	for _, r := range rules {
		if r.Family == f && r.Table == table {
			found = append(found, r)
		}
	}
	return found
}

func TestLiveIPTables(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		w := netnstest.NewWorld(t, netnstest.Options{})
		rs, err := dual().Ruleset()
		require.NoError(t, err)
		b, err := apply.NewIPTables(w.Pod, v, apply.Options{Runner: w.Pod.Sandbox()})
		require.NoError(t, err)
		_, err = b.Apply(t.Context(), rs)
		require.NoError(t, err)
		shell(t, w.Pod, string(v)+` -t nat -A POSTROUTING -m comment --comment 'not ours -c 8 9' -j RETURN`)
		probe, err := netnstest.ParseProbe("pod tcp 1000/1000 -> 10.96.5.5:80")
		require.NoError(t, err)
		w.Run([]netnstest.Probe{probe})
		before := state(t, w.Pod)

		live, err := apply.Live(t.Context(), w.Pod, apply.Options{}, rs)
		require.NoError(t, err)
		for _, f := range ruleset.Families {
			ours := 0
			for _, r := range live {
				assert.Equal(t, v, r.Backend)
				require.NotNil(t, r.Counters, "iptables counts always")
				if r.Family != f || !r.Ours {
					continue
				}
				ours++
				table, err := ruleset.ParseTable(r.Table)
				require.NoError(t, err)
				want := rs.Family(f).Chain(table, r.Chain).Rules[r.Position-1]
				assert.Equal(t, want.Text(f), r.Text)
				assert.Equal(t, want.Comment, r.Reason)
			}
			assert.Equal(t, rs.Family(f).NumRules(), ours)
		}
		nat := ofTable(live, ruleset.IPv4, "nat")
		foreign, redirects := 0, 0
		for _, r := range nat {
			if !r.Ours {
				foreign++
				assert.Equal(t, `-m comment --comment "not ours -c 8 9" -j RETURN`, r.Text)
				assert.Empty(t, r.Reason)
			}
			if r.Chain == "ISTIO_REDIRECT" {
				redirects++
				assert.Equal(t, uint64(1), r.Counters.Packets, "the probe's connection")
				assert.Equal(t, uint64(60), r.Counters.Bytes, "of its SYN")
			}
		}
		assert.Equal(t, 1, foreign)
		assert.Equal(t, 1, redirects)
		assert.Equal(t, before, state(t, w.Pod), "to look changes nothing")

		live, err = apply.Live(t.Context(), w.Pod, apply.Options{})
		require.NoError(t, err)
		for _, r := range live {
			assert.False(t, r.Ours, "whose nobody said")
		}
		_, err = apply.Live(t.Context(), w.Pod, apply.Options{Path: t.TempDir()}, rs)
		assert.ErrorIs(t, err, apply.ErrNoBackend)
	})
}

// TestLiveForgedComments: whoever may write rules in a pod may write comments with line feeds, and with what looks like counters, rules
// and chains after them. Each rule keeps its own counters.
func TestLiveForgedComments(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		ns := netnstest.New(t)
		b, err := apply.NewIPTables(ns, v, apply.Options{Runner: ns.Sandbox()})
		require.NoError(t, err)
		rs, err := dual().Ruleset()
		require.NoError(t, err)
		_, err = b.Apply(t.Context(), rs)
		require.NoError(t, err)
		comments := []string{
			"a\n[7:8] b", "[7:8] -A POSTROUTING -j DROP", "a\n-N NONE", "a\n:NONE - [0:0]\n[1:2] -A NONE -j DROP", "a\nCOMMIT\n*nat", "a -c 1 2\n\" -c 3 4",
			"\n", "a\r\n\tb\v\f\u0085\u2028", "a\n-A POSTROUTING -j DROP", `a\`, `"`, "'\n'",
		}
		require.NoError(t, ns.Do(func() error {
			for i, c := range comments {
				counters := []string{strconv.Itoa(100 + i), strconv.Itoa(1000 + i)}
				out, err := exec.Command(string(v), append([]string{"-w", "-t", "nat", "-A", "POSTROUTING", "-m", "comment", "--comment", c, "-j", "RETURN", "-c"}, counters...)...).CombinedOutput() //nolint:gosec // a test
				if err != nil {
					return fmt.Errorf("%q: %w: %s", c, err, out)
				}
			}
			return nil
		}))
		for name, o := range map[string]apply.Options{"ours": {}, "sandbox": {Runner: ns.Sandbox()}} {
			live, err := apply.Live(t.Context(), ns, o, rs)
			require.NoError(t, err, name)
			var forged []ruleset.LiveRule
			ours := 0
			for _, r := range live {
				switch {
				case r.Ours:
					ours++
				case r.Chain == "POSTROUTING":
					forged = append(forged, r)
				default:
					assert.Fail(t, "a rule that nobody made", "%s: %+v", name, r)
				}
			}
			assert.Equal(t, rs.IPv4.NumRules()+rs.IPv6.NumRules(), ours, name)
			require.Len(t, forged, len(comments), name)
			for i, r := range forged {
				assert.Equal(t, &ruleset.Counters{Packets: uint64(100 + i), Bytes: uint64(1000 + i)}, r.Counters, "%s: %q", name, comments[i])
				assert.Equal(t, i+1, r.Position)
				assert.Regexp(t, `(?s)^-m comment --comment .* -j RETURN$`, r.Text)
			}
		}
	})
}

func TestLiveNFTables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	w := netnstest.NewWorld(t, netnstest.Options{})
	rs, err := dual().Ruleset()
	require.NoError(t, err)
	live, err := apply.Live(t.Context(), w.Pod, apply.Options{}, rs)
	require.NoError(t, err)
	assert.Empty(t, live)

	_, err = apply.NewNFTables(w.Pod).Apply(t.Context(), rs)
	require.NoError(t, err)
	nft(t, w.Pod, "table ip6 other {\nchain out {\ntype filter hook output priority 0\nudp dport 5353 counter packets 3 bytes 300 comment \"why\"\n}\n}", "-f", "-")
	live, err = apply.Live(t.Context(), w.Pod, apply.Options{Path: t.TempDir()}, rs)
	require.NoError(t, err, "no program is needed")
	ours := 0
	for _, r := range live {
		assert.Equal(t, ruleset.BackendNftables, r.Backend)
		if r.Ours {
			ours++
			assert.Equal(t, "inet istio", r.Table)
			assert.Nil(t, r.Counters, "none of ours counts")
			assert.NotContains(t, r.Text, "comment")
		}
	}
	assert.Equal(t, len(live)-1, ours)
	want := rs.IPv4.Chain(ruleset.NAT, "ISTIO_REDIRECT").Rules[0]
	at := slices.IndexFunc(live, func(r ruleset.LiveRule) bool { return r.Chain == "nat/ISTIO_REDIRECT" })
	require.NotZero(t, live[at].Handle)
	live[at].Handle = 0
	assert.Equal(t, ruleset.LiveRule{
		Backend: ruleset.BackendNftables, Table: "inet istio", Chain: "nat/ISTIO_REDIRECT", Position: 1,
		Text: "meta l4proto tcp redirect to :15001", Action: "redirect", Ours: true, Reason: want.Comment,
		Rules: []ruleset.Rule{{Proto: want.Proto, Target: want.Target}},
	}, live[at])
	live[len(live)-1].Handle = 0
	assert.Equal(t, ruleset.LiveRule{
		Backend: ruleset.BackendNftables, Family: ruleset.IPv6, Table: "ip6 other", Chain: "out", Position: 1,
		Hook: &ruleset.Hook{Type: "filter", Point: "output", Policy: "accept"},
		Text: `meta l4proto udp th dport 5353 counter comment "why"`, Counters: &ruleset.Counters{Packets: 3, Bytes: 300},
		Rules: []ruleset.Rule{{Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(5353)), Comment: "why"}},
	}, live[len(live)-1])
}
