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

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/istio"
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

func conn(t testing.TB, ns *netnsexec.NetNS) *nftables.Conn {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(ns.Fd()))
	require.NoError(t, err)
	return c
}

// goTo is a rule that does nothing but jump.
func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// hostile fills iptables' tables of both families, and the table of the native backend where it is.
func hostile(t testing.TB, ns *netnsexec.NetNS, ours bool) {
	t.Helper()
	c := conn(t, ns)
	tables := []*nftables.Table{}
	for _, f := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		for _, name := range iptablesTables {
			tables = append(tables, &nftables.Table{Name: name, Family: f})
		}
	}
	if ours {
		tables = append(tables, &nftables.Table{Name: "istio", Family: nftables.TableFamilyINet})
	}
	for _, table := range tables {
		c.AddTable(table)
		inner := c.AddChain(&nftables.Chain{Name: "inner", Table: table})
		c.AddRule(&nftables.Rule{Table: table, Chain: inner, Exprs: []expr.Any{&expr.Counter{}}})
		for _, name := range hostileNames {
			chain := c.AddChain(&nftables.Chain{Name: name, Table: table})
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: goTo("inner")})
			c.AddRule(&nftables.Rule{Table: table, Chain: inner, Exprs: []expr.Any{&expr.Counter{}}})
		}
		require.NoError(t, c.Flush(), table.Name)
	}
}

// chainCounts are all chains of a namespace with the number of their rules, and where they jump.
func chainCounts(t testing.TB, ns *netnsexec.NetNS, of func(name string) bool) map[string]string {
	t.Helper()
	c := conn(t, ns)
	chains, err := c.ListChains()
	require.NoError(t, err)
	found := map[string]string{}
	for _, ch := range chains {
		if !of(ch.Name) {
			continue
		}
		rules, err := c.GetRules(ch.Table, ch)
		require.NoError(t, err)
		text := fmt.Sprint(len(rules))
		for _, r := range rules {
			for _, e := range r.Exprs {
				if v, ok := e.(*expr.Verdict); ok {
					text += fmt.Sprintf(" %q", v.Chain)
				}
			}
		}
		found[fmt.Sprintf("%d %s %q", ch.Table.Family, ch.Table.Name, ch.Name)] = text
	}
	return found
}

func isHostile(name string) bool { return slices.Contains(hostileNames, name) || name == "inner" }

// TestHostileChainNames: names that would be something else in a text are neither
// taken for the mesh's nor given to a program. What is applied is in force, and
// what is said is so.
func TestHostileChainNames(t *testing.T) {
	owner := istio.Defaults().Names.Owner()
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
				hostile(t, ns, earlier && name == apply.Nftables)
				theirs := chainCounts(t, ns, isHostile)
				require.GreaterOrEqual(t, len(theirs), 8*len(hostileNames))
				inTables := func(m map[string]string) map[string]string {
					for at := range m {
						if strings.HasPrefix(at, fmt.Sprint(nftables.TableFamilyINet, " ")) {
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
				gone := map[apply.Name]string{
					apply.IptablesNFT: "iptables-nft -t mangle -F ISTIO_INBOUND", apply.IptablesLegacy: "iptables-legacy -t mangle -F ISTIO_INBOUND",
					apply.Nftables: "nft flush chain inet istio mangle/ISTIO_INBOUND",
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
func assertInForce(t testing.TB, ns *netnsexec.NetNS, name apply.Name, rs ruleset.Ruleset) {
	t.Helper()
	for _, f := range ruleset.Families {
		for _, c := range rs.Program(f).Chains {
			program, table := "iptables", nftables.TableFamilyIPv4
			if f == ruleset.IPv6 {
				program, table = "ip6tables", nftables.TableFamilyIPv6
			}
			switch name {
			case apply.IptablesLegacy:
				text := shell(t, ns, fmt.Sprintf("%s-legacy -t %s -S %s", program, c.Table, c.Name))
				assert.Equal(t, len(c.Rules), strings.Count(text, "-A "+c.Name+" "), "%s %s", f, c.Name)
			case apply.IptablesNFT:
				rules, err := conn(t, ns).GetRules(&nftables.Table{Name: c.Table.String(), Family: table}, &nftables.Chain{Name: c.Name})
				require.NoError(t, err)
				assert.Len(t, rules, len(c.Rules), "%s %s %s", f, c.Table, c.Name)
			case apply.Nftables:
				rules, err := conn(t, ns).GetRules(&nftables.Table{Name: "istio", Family: nftables.TableFamilyINet}, &nftables.Chain{Name: c.Table.String() + "/" + c.Name})
				require.NoError(t, err)
				assert.NotEmpty(t, rules, "%s %s %s", f, c.Table, c.Name)
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
	eachVariant(t, func(t *testing.T, v apply.Name) {
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
		require.NoError(t, b.Remove(t.Context(), istio.Defaults().Names.Owner()))
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
	eachVariant(t, func(t *testing.T, v apply.Name) {
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
					require.ErrorContains(t, b.Remove(t.Context(), istio.Defaults().Names.Owner()), "the kernel does not have the rules")
				}
			}
		}
	})
}

// TestTooManyRules: what a pod with CAP_NET_ADMIN has made beyond measure is not read.
func TestTooManyRules(t *testing.T) {
	r := istio.Defaults()
	rs := r.MustRuleset()
	for _, name := range []apply.Name{apply.IptablesNFT, apply.IptablesLegacy} {
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
			_, err = b.Check(t.Context(), rs)
			require.ErrorContains(t, err, "more rules, chains, sets or tables than are read: they are over 50000 rules")
			_, err = b.Apply(t.Context(), rs)
			require.ErrorContains(t, err, "more rules, chains, sets or tables than are read: they are over 50000 rules")
		})
	}
}
