//go:build linux

package apply_test

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/testing/nfttest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// hostileNames are names of chains that a pod with CAP_NET_ADMIN can make by
// netlink, and that neither iptables nor nft takes.
var hostileNames = []string{
	"ISTIO_OUTPUT\tx", "ISTIO_OUTPUT\t-j\tACCEPT", "ISTIO_REDIRECT x", "ISTIO_INBOUND ", " ISTIO_INBOUND", "\tISTIO_INBOUND", "ISTIO_\x01",
	"a\tb", "a b", " ", "-X", "*nat", ":ISTIO_OUTPUT", "#", "!", "COMMIT", "q\"q", `b\`, "'", "x\ry", "\xff\xfe", "ü", "$(id)", ";",
	"ISTIO_A\n", "ISTIO_A\n-A OUTPUT -j ACCEPT", "n - [0:0]\nCOMMIT\n*filter\n-A OUTPUT -m ../../tmp/x -j DROP\n#", "\n", "\nCOMMIT",
	"ISTIO_" + strings.Repeat("o", 60), strings.Repeat("MESH_", 25), "ISTIO_" + strings.Repeat("\t", 100),
}

var iptablesTables = []string{"raw", "mangle", "nat", "filter"}

// hostile fills iptables' tables of both families, and the table of the native backend where it is.
func hostile(t testing.TB, ns *netnsexec.NetNS, ours bool) {
	t.Helper()
	type table struct {
		family uint8
		name   string
	}
	var tables []table
	for _, f := range []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		for _, name := range iptablesTables {
			tables = append(tables, table{f, name})
		}
	}
	if ours {
		tables = append(tables, table{unix.NFPROTO_INET, "istio"})
	}
	for _, table := range tables {
		chains := []nfttest.Chain{{Family: table.family, Table: table.name, Name: "inner", Jumps: make([]string, len(hostileNames)+1)}}
		for _, name := range hostileNames {
			chains = append(chains, nfttest.Chain{Family: table.family, Table: table.name, Name: name, Jumps: []string{"inner"}})
		}
		require.NoError(t, nfttest.Add(ns, chains...), table.name)
	}
}

// chainCounts are all chains of a namespace with the number of their rules, and where they jump.
func chainCounts(t testing.TB, ns *netnsexec.NetNS, wanted func(name string) bool) map[string]string {
	t.Helper()
	chains, err := liveChains(ns)
	require.NoError(t, err)
	found := map[string]string{}
	for _, c := range chains {
		if wanted(c.Name) {
			found[fmt.Sprintf("%d %s %q", c.Family, c.Table, c.Name)] = fmt.Sprintf("%d %q", len(c.Jumps), c.Jumps)
		}
	}
	return found
}

// liveChains lists all chains of a namespace by another client than the backends'.
func liveChains(ns *netnsexec.NetNS) (chains []nfttest.Chain, err error) {
	err = ns.Do(func() error {
		return each(unix.NFT_MSG_GETCHAIN, func(family uint8, attrs map[uint16][]byte) {
			chains = append(chains, nfttest.Chain{Family: family, Table: word(attrs[unix.NFTA_CHAIN_TABLE]), Name: word(attrs[unix.NFTA_CHAIN_NAME])})
		})
	})
	if err != nil {
		return nil, err
	}
	return chains, ns.Do(func() error {
		return each(unix.NFT_MSG_GETRULE, func(family uint8, attrs map[uint16][]byte) {
			for i := range chains {
				c := &chains[i]
				if c.Family == family && c.Table == word(attrs[unix.NFTA_RULE_TABLE]) && c.Name == word(attrs[unix.NFTA_RULE_CHAIN]) {
					c.Jumps = append(c.Jumps, jump(attrs[unix.NFTA_RULE_EXPRESSIONS]))
				}
			}
		})
	})
}

func each(typ int, fn func(family uint8, attrs map[uint16][]byte)) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	for _, m := range answers {
		fn(m[0], parse(m[nl.SizeofNfgenmsg:]))
	}
	return err
}

func parse(b []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	attrs, err := nl.ParseRouteAttr(b)
	for _, a := range attrs {
		found[a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	if err != nil {
		return nil
	}
	return found
}

func word(b []byte) string { return string(b[:max(0, len(b)-1)]) } // less the zero

func jump(exprs []byte) (chain string) {
	list, _ := nl.ParseRouteAttr(exprs)
	for _, e := range list {
		data := parse(parse(e.Value)[unix.NFTA_EXPR_DATA])
		if to := parse(parse(data[unix.NFTA_IMMEDIATE_DATA])[unix.NFTA_DATA_VERDICT])[unix.NFTA_VERDICT_CHAIN]; to != nil {
			chain = word(to)
		}
	}
	return chain
}

func isHostile(name string) bool { return slices.Contains(hostileNames, name) || name == "inner" }

// TestHostileChainNames: names that would be something else in a text are neither
// taken for the mesh's nor given to a program. What is applied is in force, and
// what is said is so.
func TestHostileChainNames(t *testing.T) {
	owner := istio.DefaultRedirect().Names.Owner()
	for _, name := range everyBackend {
		for _, earlier := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/earlier=%v", name, earlier), func(t *testing.T) {
				t.Parallel()
				ns := netnstest.New(t)
				b := choose(t, ns, name)
				rs := tproxy().MustRuleset()
				if earlier {
					mustApply(t, b, dual().MustRuleset())
				}
				hostile(t, ns, earlier && name == ruleset.BackendNftables)
				theirs := chainCounts(t, ns, isHostile)
				require.GreaterOrEqual(t, len(theirs), 8*len(hostileNames))
				inTables := func(m map[string]string) map[string]string {
					for at := range m {
						if strings.HasPrefix(at, fmt.Sprint(unix.NFPROTO_INET, " ")) {
							delete(m, at) // in a table of ours all is ours
						}
					}
					return m
				}
				check := func(want ruleset.Ruleset) []ruleset.Difference {
					t.Helper()
					diffs, err := b.Check(t.Context(), want)
					require.NoError(t, err)
					return diffs
				}
				assert.NotEmpty(t, check(rs))
				assert.True(t, mustApply(t, b, rs).Changed)
				assert.Empty(t, check(rs))
				assert.False(t, mustApply(t, b, rs).Changed)
				assertInForce(t, ns, name, rs)
				assert.Equal(t, inTables(theirs), inTables(chainCounts(t, ns, isHostile)))

				// A rule that is gone is missed, and comes back.
				gone := map[ruleset.Backend]string{
					ruleset.BackendIptablesNFT: "iptables-nft -t mangle -F ISTIO_INBOUND", ruleset.BackendIptablesLegacy: "iptables-legacy -t mangle -F ISTIO_INBOUND",
					ruleset.BackendNftables: "nft flush chain inet istio mangle/ISTIO_INBOUND",
				}[name]
				shell(t, ns, gone+" || nft 'flush table inet istio'")
				assert.NotEmpty(t, check(rs))
				mustApply(t, b, rs)
				assertInForce(t, ns, name, rs)
				assert.Empty(t, check(rs))

				require.NoError(t, b.Remove(t.Context(), owner))
				assert.Empty(t, check(owner.EmptyRuleset()))
				assert.Empty(t, chainCounts(t, ns, owner.OwnsChain))
				assert.Equal(t, inTables(theirs), inTables(chainCounts(t, ns, isHostile)))
			})
		}
	}
}

// assertInForce looks into the kernel by another way than the backends do.
func assertInForce(t testing.TB, ns *netnsexec.NetNS, name ruleset.Backend, rs ruleset.Ruleset) {
	t.Helper()
	live, err := liveChains(ns)
	require.NoError(t, err)
	for _, f := range ruleset.Families {
		for _, c := range rs.Family(f).Chains {
			family, table, chain := uint8(unix.NFPROTO_IPV4), c.Table.String(), c.Name
			if f == ruleset.IPv6 {
				family = unix.NFPROTO_IPV6
			}
			if name == ruleset.BackendIptablesLegacy {
				assert.Len(t, listed(t, ns, name, f, table, chain), len(c.Rules), "%s %s", f, c.Name)
				continue
			}
			if name == ruleset.BackendNftables {
				family, table, chain = unix.NFPROTO_INET, "istio", table+"/"+chain
			}
			at := slices.IndexFunc(live, func(l nfttest.Chain) bool { return l.Family == family && l.Table == table && l.Name == chain })
			require.GreaterOrEqual(t, at, 0, "%s %s %s", f, table, chain)
			if name == ruleset.BackendNftables {
				assert.NotEmpty(t, live[at].Jumps, "%s %s", f, chain)
			} else {
				assert.Len(t, live[at].Jumps, len(c.Rules), "%s %s %s", f, table, chain)
			}
		}
	}
}

// listening keeps what programs are given.
type listening struct {
	apply.Runner
	mu    sync.Mutex
	given strings.Builder
}

func (l *listening) Run(cmd *exec.Cmd) error {
	if cmd.Stdin != nil {
		text, err := io.ReadAll(cmd.Stdin)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.given.Write(text)
		l.mu.Unlock()
		cmd.Stdin = bytes.NewReader(text)
	}
	return l.Runner.Run(cmd)
}

// TestNothingReadIsGivenBack: a comment with line feeds, in chains of the mesh and
// of others, is neither believed nor given to a program, not even to undo a failure.
func TestNothingReadIsGivenBack(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		const comment = "x\n-A OUTPUT -m ../../../../tmp/evil -j ACCEPT\n#"
		spoil := func(ns *netnsexec.NetNS) {
			for _, chain := range []string{"OUTPUT", "ISTIO_OUTPUT", "THEIRS"} {
				for _, p := range []string{"iptables", "ip6tables"} {
					program := strings.Replace(string(v), "iptables", p, 1)
					_ = ns.Run(exec.CommandContext(t.Context(), program, "-t", "nat", "-N", chain)) // may be there
					require.NoError(t, ns.Run(exec.CommandContext(t.Context(), program, "-t", "nat", "-A", chain, "-m", "comment", "--comment", comment, "-j", "RETURN")))
				}
			}
		}
		listen := func(ns *netnsexec.NetNS, program string) (*listening, apply.Backend) {
			l := &listening{Runner: &failing{Runner: ns.Sandbox(), program: program, late: true, times: 1}}
			b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: v, Runner: l})
			require.NoError(t, err)
			return l, b
		}
		ns := netnstest.New(t)
		mustApply(t, choose(t, ns, v), dual().MustRuleset())
		spoil(ns)
		l, b := listen(ns, strings.Replace(string(v), "iptables", "ip6tables", 1)+"-restore")
		_, err := b.Apply(t.Context(), tproxy().MustRuleset())
		require.ErrorContains(t, err, "killed half way")
		require.ErrorContains(t, err, "1 rules of others in chains of the mesh are lost")
		assert.NotContains(t, err.Error(), "\n-A OUTPUT", "told without its line feeds")
		assert.NotContains(t, l.given.String(), "evil")
		diffs, err := b.Check(t.Context(), dual().MustRuleset())
		require.NoError(t, err)
		assert.Empty(t, diffs, "as before, less what was nobody's to keep")

		spoil(ns)
		diffs, err = b.Check(t.Context(), dual().MustRuleset())
		require.NoError(t, err)
		require.Len(t, diffs, 2, "the rules in our chains")
		assert.NotContains(t, differing(diffs), "\n-A OUTPUT")
		mustApply(t, b, tproxy().MustRuleset())
		diffs, err = b.Check(t.Context(), tproxy().MustRuleset())
		require.NoError(t, err)
		assert.Empty(t, diffs)
		require.NoError(t, b.Remove(t.Context(), istio.DefaultRedirect().Names.Owner()))
		assert.NotContains(t, l.given.String(), "evil")
		assert.Equal(t, 8, strings.Count(state(t, ns), "tmp/evil"), "others' rules stay, two of each chain and family")
	})
}

// idle says that it has run, and has not.
type idle struct {
	apply.Runner
	program string
}

func (i idle) Run(cmd *exec.Cmd) error {
	if filepath.Base(cmd.Path) == i.program {
		return nil
	}
	return i.Runner.Run(cmd)
}

// TestNothingApplied: that a program ends well is not taken for rules in the kernel.
func TestNothingApplied(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		for _, program := range []string{string(v) + "-restore", strings.Replace(string(v), "iptables", "ip6tables", 1) + "-restore"} {
			for _, earlier := range []bool{false, true} {
				ns := netnstest.New(t)
				if earlier {
					mustApply(t, choose(t, ns, v), dual().MustRuleset())
				}
				before := state(t, ns)
				b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: v, Runner: idle{ns.Sandbox(), program}})
				require.NoError(t, err)
				_, err = b.Apply(t.Context(), tproxy().MustRuleset())
				require.ErrorContains(t, err, "the kernel does not have the rules", "%s %v", program, earlier)
				if strings.HasPrefix(program, "ip6") { // what undoes IPv4 works
					assert.Equal(t, before, state(t, ns), "%s %v", program, earlier)
				}
				if earlier {
					require.ErrorContains(t, b.Remove(t.Context(), istio.DefaultRedirect().Names.Owner()), "the kernel does not have the rules")
				}
			}
		}
	})
}

// TestTooManyRules: what a pod with CAP_NET_ADMIN has made beyond measure is not read.
func TestTooManyRules(t *testing.T) {
	r := istio.DefaultRedirect()
	rs := r.MustRuleset()
	for _, name := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		t.Run(string(name), func(t *testing.T) {
			ns := netnstest.New(t)
			b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: name, Runner: ns.Sandbox()})
			require.NoError(t, err)
			_, err = b.Apply(t.Context(), rs)
			require.NoError(t, err)
			var text strings.Builder
			text.WriteString("*nat\n:MINE - [0:0]\n")
			for i := range 50_100 {
				fmt.Fprintf(&text, "-A MINE -s 10.0.%d.%d -j RETURN\n", i>>8, i&255)
			}
			text.WriteString("COMMIT\n")
			cmd := exec.CommandContext(t.Context(), string(name)+"-restore", "--noflush")
			cmd.Stdin = strings.NewReader(text.String())
			require.NoError(t, ns.Run(cmd))
			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			require.Len(t, diffs, 1)
			require.Contains(t, diffs[0].String(), "cannot tell: others have more than 1000")
			_, err = b.Apply(t.Context(), rs)
			require.ErrorContains(t, err, "more than is read of one network namespace: they are over 50000 rules")
		})
	}
}
