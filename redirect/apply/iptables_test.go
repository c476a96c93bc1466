//go:build linux

package apply_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/testing/streamtest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var variants = []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy}

func eachVariant(t *testing.T, test func(t *testing.T, v ruleset.Backend)) {
	for _, v := range variants {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, netnstest.Binary(string(v)))
			test(t, v)
		})
	}
}

// dual is a dual-stack pod with a bit of everything.
func dual() redirect.Redirect {
	r := istio.DefaultRedirect()
	r.IPv6 = redirect.FamilyCapture
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: istio.DNSPort}
	r.Outbound.ExcludeCIDRs = redirect.Prefixes(netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/64"))
	return r
}

func tproxy() redirect.Redirect {
	r := dual()
	r.Mode = redirect.ModeTProxy
	r.DropInvalid = true
	return r
}

// shell runs a command line in the namespace; its words come from tests only.
func shell(t testing.TB, ns *netnsexec.NetNS, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, ns.Run(cmd), "%s: %s", line, &out)
	return out.String()
}

// state is all that can be seen of rules and routing in a namespace, less
// counters, times and tables that hold nothing.
func state(t testing.TB, ns *netnsexec.NetNS) string {
	t.Helper()
	var lines []string
	for _, v := range variants {
		for _, p := range []string{"iptables", "ip6tables"} {
			name := strings.Replace(string(v), "iptables", p, 1)
			saved, err := ruleset.Parse(ruleset.IPv4, shell(t, ns, name+"-save"))
			require.NoError(t, err)
			var own []string
			for _, c := range saved {
				if c.Policy != "accept" {
					own = append(own, fmt.Sprintf("%s %s :%s %s\n", name, c.Table, c.Name, c.Policy))
				}
				for _, r := range c.Rules {
					own = append(own, fmt.Sprintf("%s %s -A %s %s\n", name, c.Table, c.Name, r.Text))
				}
			}
			slices.SortStableFunc(own, func(a, b string) int { return strings.Compare(head(a), head(b)) })
			lines = append(lines, own...)
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(head(a), head(b)) })
	lines = append(lines, shell(t, ns, "ip rule; ip -6 rule; ip route show table 133 2>/dev/null; ip -6 route show table 133 2>/dev/null; ip -o addr show dev lo; true"))
	return strings.Join(lines, "")
}

// head is a line of state up to its chain: chains are in any order, rules are not.
func head(line string) string {
	return strings.Join(strings.Fields(line)[:min(4, len(strings.Fields(line)))], " ")
}

func mustApply(t testing.TB, b apply.Backend, rs ruleset.Ruleset) apply.Result {
	t.Helper()
	res, err := b.Apply(t.Context(), rs)
	require.NoError(t, err)
	return res
}

func TestApplyIsIdempotent(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		for _, r := range []redirect.Redirect{istio.DefaultRedirect(), dual(), tproxy()} {
			ns := netnstest.New(t)
			b := choose(t, ns, v)
			first := mustApply(t, b, r.MustRuleset())
			assert.True(t, first.Changed)
			families := 1
			if r.IPv6 == redirect.FamilyCapture {
				families = 2
			}
			assert.Equal(t, families, first.Processes, "one process for each family in a fresh namespace")
			before := state(t, ns)
			second := mustApply(t, b, r.MustRuleset())
			assert.False(t, second.Changed)
			assert.Zero(t, second.Transactions)
			assert.Equal(t, families, second.Processes, "one process for each family to read")
			assert.Equal(t, before, state(t, ns))

			diffs, err := b.Check(t.Context(), r.MustRuleset())
			require.NoError(t, err)
			assert.Empty(t, diffs)
		}
	})
}

func TestApplyAfterAnother(t *testing.T) {
	programs := map[string]redirect.Redirect{"plain": istio.DefaultRedirect(), "dual": dual(), "tproxy": tproxy()}
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		for from, old := range programs {
			for to, want := range programs {
				fresh := netnstest.New(t)
				mustApply(t, choose(t, fresh, v), want.MustRuleset())
				ns := netnstest.New(t)
				b := choose(t, ns, v)
				mustApply(t, b, old.MustRuleset())
				mustApply(t, b, want.MustRuleset())
				assert.Equal(t, state(t, fresh), state(t, ns), "%s to %s", from, to)
				diffs, err := b.Check(t.Context(), want.MustRuleset())
				require.NoError(t, err)
				assert.Empty(t, diffs, "%s to %s", from, to)
			}
		}
	})
}

// TestChangedPodIsOneTransaction counts the kernel's changes, not our texts.
func TestChangedPodIsOneTransaction(t *testing.T) {
	ns := netnstest.New(t)
	b := choose(t, ns, ruleset.BackendIptablesNFT)
	r := istio.DefaultRedirect()
	r.IPv6 = redirect.FamilyCapture
	mustApply(t, b, r.MustRuleset())
	before := generation(t, ns)
	r.Outbound.ExcludePorts = redirect.Ports(3306, 9090)
	res := mustApply(t, b, r.MustRuleset())
	assert.Equal(t, 2, res.Transactions)
	assert.Equal(t, before+2, generation(t, ns), "one transaction for each family")
}

// generation is how often the namespace's nftables have been changed.
func generation(t testing.TB, ns *netnsexec.NetNS) uint32 {
	t.Helper()
	gen, err := apply.Generation(ns)
	require.NoError(t, err)
	return gen
}

// TestOtherBackendIsReplaced: however a pod was programmed, the next Apply
// leaves one program, its own.
func TestOtherBackendIsReplaced(t *testing.T) {
	all := append([]ruleset.Backend{ruleset.BackendNftables}, variants...)
	for _, from := range all {
		for _, to := range all {
			for name, r := range map[string]redirect.Redirect{"dual": dual(), "tproxy": tproxy()} {
				t.Run(fmt.Sprintf("%s to %s %s", from, to, name), func(t *testing.T) {
					t.Parallel()
					ns, fresh := netnstest.New(t), netnstest.New(t)
					mustApply(t, choose(t, ns, from), tproxy().MustRuleset())
					b := choose(t, ns, to)
					diffs, err := b.Check(t.Context(), r.MustRuleset())
					require.NoError(t, err)
					assert.Equal(t, from == to && name == "tproxy", len(diffs) == 0, "%v", diffs)
					mustApply(t, b, r.MustRuleset())
					mustApply(t, choose(t, fresh, to), r.MustRuleset())
					assert.Equal(t, full(t, fresh), full(t, ns))
					diffs, err = b.Check(t.Context(), r.MustRuleset())
					require.NoError(t, err)
					assert.Empty(t, diffs)
					require.NoError(t, b.Remove(t.Context(), r.Names.Owner()))
					assert.Equal(t, full(t, netnstest.New(t)), full(t, ns))
				})
			}
		}
	}
}

// full is state with the table of native nftables, whose chains are in the
// order of their making; that Check finds nothing shows the order of rules.
func full(t testing.TB, ns *netnsexec.NetNS) string {
	t.Helper()
	lines := strings.Split(shell(t, ns, "nft list tables inet; nft -s list table inet istio 2>/dev/null; true"), "\n")
	slices.Sort(lines)
	return state(t, ns) + strings.Join(lines, "\n")
}

func TestAutoFollowsWhatIsInUse(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		ns := netnstest.New(t)
		shell(t, ns, string(v)+" -t filter -A INPUT -j ACCEPT")
		assert.Equal(t, v, choose(t, ns, ruleset.BackendAuto).Name())
		assert.Equal(t, v, choose(t, ns, ruleset.BackendIptables).Name())
	})
	assert.Equal(t, ruleset.BackendIptablesNFT, choose(t, netnstest.New(t), ruleset.BackendAuto).Name(), "nothing in use")
}

// TestAutoAfterLegacy: a legacy table outlives its rules, and what is left of it
// decides nothing and costs no process.
func TestAutoAfterLegacy(t *testing.T) {
	netnstest.Require(t, netnstest.Binary("iptables-legacy"))
	ns := netnstest.New(t)
	rs := dual().MustRuleset()
	mustApply(t, choose(t, ns, ruleset.BackendIptablesLegacy), rs)
	assert.Equal(t, ruleset.BackendIptablesLegacy, choose(t, ns, ruleset.BackendAuto).Name())
	require.NoError(t, choose(t, ns, ruleset.BackendAuto).Remove(t.Context(), rs.Owner()))
	require.Contains(t, shell(t, ns, "cat /proc/thread-self/net/ip_tables_names"), "nat")
	assert.Equal(t, ruleset.BackendIptablesNFT, choose(t, ns, ruleset.BackendAuto).Name())
	traces, err := apply.IptablesTraces(t.Context(), ns, rs.Owner())
	require.NoError(t, err)
	assert.Empty(t, traces)

	none, err := apply.Choose(t.Context(), ns, apply.Options{Path: t.TempDir()})
	require.NoError(t, err)
	assert.Equal(t, ruleset.BackendNftables, none.Name())
	mustApply(t, none, rs)
	diffs, err := none.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)
	require.NoError(t, none.Remove(t.Context(), rs.Owner()))

	shell(t, ns, "iptables-legacy -t nat -N EMPTY") // somebody's
	assert.Equal(t, ruleset.BackendIptablesLegacy, choose(t, ns, ruleset.BackendAuto).Name())
}

// TestZeroOptions: programs run in the namespace's sandbox, in which /run, where
// the host's xtables lock is, is empty.
func TestZeroOptions(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		dir := t.TempDir()
		require.NotEmpty(t, shell(t, netnstest.New(t), "ls -A /run"), "what the sandbox hides")
		for _, name := range []string{"iptables", "ip6tables"} {
			for _, verb := range []string{"-restore", "-save"} {
				program := strings.Replace(string(v), "iptables", name, 1) + verb
				script := fmt.Sprintf("#!/bin/sh\nls -A /run >>%s/seen\necho called >>%s/calls\nexec /usr/sbin/%s \"$@\"\n", dir, dir, program)
				require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755))
			}
		}
		b, err := apply.Choose(t.Context(), netnstest.New(t), apply.Options{Backend: v, Path: dir})
		require.NoError(t, err)
		assert.True(t, mustApply(t, b, dual().MustRuleset()).Changed)
		seen, err := os.ReadFile(filepath.Join(dir, "seen"))
		require.NoError(t, err)
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		require.NoError(t, err)
		assert.NotEmpty(t, calls)
		assert.Empty(t, strings.ReplaceAll(string(seen), "xtables.lock\n", ""), "only a lock of its own")
	})
}

// foreign are rules of somebody else, some where ours stand and some in the way.
const foreign = `*nat
:OTHER - [0:0]
-A PREROUTING -p tcp -m tcp --dport 9999 -j OTHER
-A OUTPUT -o eth9 -m comment --comment "not a mesh's: -j ISTIO_OUTPUT" -j RETURN
-A OTHER -j RETURN
-A POSTROUTING -s 10.9.0.0/16 -j MASQUERADE
COMMIT
*mangle
-A PREROUTING -m conntrack --ctstate INVALID -j DROP
COMMIT
*filter
:INPUT DROP [0:0]
-A INPUT -i lo -j ACCEPT
COMMIT
`

func TestForeignRulesStay(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		ns := netnstest.New(t)
		put(t, ns, string(v)+"-restore", foreign)
		before := state(t, ns)
		b := choose(t, ns, v)
		for _, r := range []redirect.Redirect{istio.DefaultRedirect(), tproxy(), dual()} {
			mustApply(t, b, r.MustRuleset())
			now := state(t, ns)
			for line := range strings.Lines(before) {
				assert.Contains(t, now, line)
			}
		}
		require.NoError(t, b.Remove(t.Context(), istio.DefaultRedirect().Names.Owner()))
		assert.Equal(t, before, state(t, ns))
	})
}

func put(t testing.TB, ns *netnsexec.NetNS, program, text string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "--noflush")
	cmd.Stdin = strings.NewReader(text)
	out := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, ns.Run(cmd), "%s: %s", program, out)
}

func TestRemoveLeavesTheNamespaceAsFound(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		for _, r := range []redirect.Redirect{istio.DefaultRedirect(), dual(), tproxy()} {
			ns := netnstest.New(t)
			before := state(t, ns) + shell(t, ns, "nft list ruleset")
			b := choose(t, ns, v)
			mustApply(t, b, r.MustRuleset())
			require.NoError(t, b.Remove(t.Context(), r.Names.Owner()))
			assert.Equal(t, before, state(t, ns)+shell(t, ns, "nft list ruleset"))
			require.NoError(t, b.Remove(t.Context(), r.Names.Owner()), "nothing left to remove")
		}
	})
}

func TestCheckSaysWhatDiffers(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		ns := netnstest.New(t)
		b := choose(t, ns, v)
		rs := tproxy().MustRuleset()
		mustApply(t, b, rs)
		shell(t, ns, string(v)+" -t nat -D ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN")
		shell(t, ns, string(v)+" -t nat -A ISTIO_REDIRECT -p udp -j RETURN")
		shell(t, ns, strings.Replace(string(v), "iptables", "ip6tables", 1)+" -t mangle -F ISTIO_DIVERT")
		shell(t, ns, "ip -6 route flush table 133")
		diffs, err := b.Check(t.Context(), rs)
		require.NoError(t, err)
		var got []string
		for _, d := range diffs {
			got = append(got, d.String())
		}
		slices.Sort(got)
		assert.Equal(t, []string{
			"ipv4 nat/ISTIO_OUTPUT:12 missing: -d 127.0.0.1/32 -j RETURN",
			"ipv4 nat/ISTIO_REDIRECT:2 unexpected: -p udp -j RETURN",
			"ipv6 mangle/ISTIO_DIVERT:1 missing: -j MARK --set-xmark 0x539/0xffffffff",
			"ipv6 mangle/ISTIO_DIVERT:2 missing: -j ACCEPT",
			"ipv6 routing/route:1 missing: ip -6 route add local ::/0 dev lo table 133",
		}, got)
		mustApply(t, b, rs)
		diffs, err = b.Check(t.Context(), rs)
		require.NoError(t, err)
		assert.Empty(t, diffs, "Apply repairs what Check finds")
	})
}

// failing makes one program fail, after it has really run when late is set.
type failing struct {
	apply.Runner
	program string
	late    bool
	mu      sync.Mutex
	times   int
}

func (f *failing) Run(cmd *exec.Cmd) error {
	f.mu.Lock()
	fails := f.times > 0 && filepath.Base(cmd.Path) == f.program
	if fails {
		f.times--
	}
	f.mu.Unlock()
	if fails && !f.late {
		fmt.Fprintln(cmd.Stderr, "made to fail")
		return fmt.Errorf("exit status 2")
	}
	err := f.Runner.Run(cmd)
	if fails {
		return fmt.Errorf("killed half way")
	}
	return err
}

// TestAllOrNothing: whichever family fails, and whether before or after the
// kernel took its rules, the namespace is as it was.
func TestAllOrNothing(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		for _, program := range []string{string(v) + "-restore", strings.Replace(string(v), "iptables", "ip6tables", 1) + "-restore"} {
			for _, late := range []bool{false, true} {
				for _, earlier := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s late=%v earlier=%v", program, late, earlier), func(t *testing.T) {
						ns := netnstest.New(t)
						if earlier {
							put(t, ns, string(v)+"-restore", foreign)
							mustApply(t, choose(t, ns, v), dual().MustRuleset())
						}
						before := state(t, ns)
						runner := &failing{Runner: ns.Sandbox(), program: program, late: late, times: 1}
						b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: v, Runner: runner})
						require.NoError(t, err)
						_, err = b.Apply(t.Context(), tproxy().MustRuleset())
						family := ruleset.IPv4
						if strings.HasPrefix(program, "ip6") {
							family = ruleset.IPv6
						}
						require.ErrorContains(t, err, "apply "+family.String()+" rules: ")
						assert.Equal(t, before, state(t, ns))
					})
				}
			}
		}
	})
}

// TestHalfOfAFamily: the second of a family's tables is refused by the real
// program, when the first has been committed.
func TestHalfOfAFamily(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		ns := netnstest.New(t)
		before := state(t, ns)
		rs := dual().MustRuleset()
		nat := rs.IPv4.Chain(ruleset.NAT, "ISTIO_INBOUND")
		nat.Rules = append(nat.Rules, ruleset.Rule{ // which has no socket's owner to match
			Owner: []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.OwnerUID, 1)}, Target: ruleset.Target{Action: ruleset.ActionReturn},
		})
		_, err := choose(t, ns, v).Apply(t.Context(), rs)
		require.Error(t, err)
		assert.Contains(t, err.Error(), "apply ipv4 rules: "+string(v)+"-restore")
		assert.Equal(t, before, state(t, ns))
	})
}

func TestDeadline(t *testing.T) {
	ns := netnstest.New(t)
	before := state(t, ns)
	dir := t.TempDir()
	for _, p := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"save", "restore"} {
			script := "#!/bin/sh\nexec sleep 1000\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, p+"-nft-"+verb), []byte(script), 0o755))
		}
	}
	b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendIptablesNFT, Path: dir})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	apply.SetUndoTime(t, 50*time.Millisecond)
	_, err = b.Apply(ctx, dual().MustRuleset())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, before, state(t, ns))
}

func TestMissingPrograms(t *testing.T) {
	ns := netnstest.New(t)
	for _, name := range []ruleset.Backend{ruleset.BackendIptables, ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		o := apply.Options{Backend: name, Path: t.TempDir()}
		_, err := apply.Choose(t.Context(), ns, o)
		require.ErrorIs(t, err, apply.ErrNoBackend)
		assert.Contains(t, err.Error(), o.Path)
		assert.ErrorIs(t, apply.Available(o), apply.ErrNoBackend)
	}
	b, err := apply.Choose(t.Context(), ns, apply.Options{Path: t.TempDir()})
	require.NoError(t, err)
	assert.Equal(t, ruleset.BackendNftables, b.Name(), "auto without iptables")
}

// TestGeneralNames: a host whose only programs are called iptables-restore.
func TestGeneralNames(t *testing.T) {
	for _, v := range variants {
		dir := t.TempDir()
		for _, p := range []string{"iptables", "ip6tables"} {
			for _, verb := range []string{"save", "restore"} {
				real, err := exec.LookPath(strings.Replace(string(v), "iptables", p, 1) + "-" + verb)
				require.NoError(t, err)
				require.NoError(t, os.Symlink(real, filepath.Join(dir, p+"-"+verb)))
			}
		}
		ns := netnstest.New(t)
		b, err := apply.Choose(t.Context(), ns, apply.Options{Path: dir})
		require.NoError(t, err)
		assert.Equal(t, v, b.Name())
		mustApply(t, b, dual().MustRuleset())
	}
}

// withoutIPv6 is a namespace of a kernel that lacks the protocol.
type withoutIPv6 struct{ *netnsexec.NetNS }

func (n withoutIPv6) Run(cmd *exec.Cmd) error {
	if strings.HasPrefix(filepath.Base(cmd.Path), "ip6") {
		return fmt.Errorf("address family not supported by protocol")
	}
	return n.NetNS.Run(cmd)
}

func TestIPv6Absent(t *testing.T) {
	apply.HideIPv6(t)
	ns := withoutIPv6{netnstest.New(t)}
	b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendIptables})
	require.NoError(t, err)
	res, err := b.Apply(t.Context(), tproxy().MustRuleset())
	require.NoError(t, err)
	assert.Equal(t, []ruleset.Family{ruleset.IPv6}, res.Skipped)
	assert.Contains(t, state(t, ns.NetNS), "iptables-nft nat -A ISTIO_OUTPUT")
	diffs, err := b.Check(t.Context(), tproxy().MustRuleset())
	require.NoError(t, err)
	assert.Empty(t, diffs)
	require.NoError(t, b.Remove(t.Context(), tproxy().Names.Owner()))
}

func TestIPv6PresentButFailing(t *testing.T) {
	ns := netnstest.New(t)
	before := state(t, ns)
	b, err := apply.Choose(t.Context(), withoutIPv6{ns}, apply.Options{Backend: ruleset.BackendIptables})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), dual().MustRuleset())
	require.ErrorContains(t, err, "apply ipv6 rules: ")
	assert.Equal(t, before, state(t, ns))
}

func TestConcurrentApplies(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		ns := netnstest.New(t)
		programs := []redirect.Redirect{istio.DefaultRedirect(), dual(), tproxy()}
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				own, err := netnsexec.Open(ns.Path())
				if !assert.NoError(t, err) {
					return
				}
				defer own.Close()
				b, err := apply.Choose(t.Context(), own, apply.Options{Backend: v, Runner: own.Sandbox()})
				if assert.NoError(t, err) {
					_, err = b.Apply(t.Context(), programs[i%3].MustRuleset())
					assert.NoError(t, err)
				}
			})
		}
		wg.Wait()
		matches := 0
		for _, r := range programs {
			diffs, err := choose(t, ns, v).Check(t.Context(), r.MustRuleset())
			require.NoError(t, err)
			if len(diffs) == 0 {
				matches++
			}
		}
		assert.Equal(t, 1, matches, "the rules are those of one of them: %s", state(t, ns))
	})
}

// TestNoConnectionSlipsPast replaces the program again and again, mode and all,
// under a stream of connections: none of them misses the proxy.
func TestNoConnectionSlipsPast(t *testing.T) {
	eachVariant(t, func(t *testing.T, v ruleset.Backend) {
		w := netnstest.NewWorld(t, netnstest.Options{})
		b := choose(t, w.Pod, v)
		other := dual()
		other.Outbound.ExcludePorts = redirect.Ports(3306)
		programs := []redirect.Redirect{dual(), other, tproxy()}
		mustApply(t, b, programs[0].MustRuleset())
		var streams []func() map[string]int
		for _, probe := range []string{
			"pod tcp 1000/1000 -> 10.96.5.5:80", "pod tcp 1000/1000 -> [fd00:96::5]:80",
			"out tcp 0/0 -> 10.244.1.5:8080", "out tcp 0/0 -> [fd00:10:244::5]:8080",
		} {
			p, err := netnstest.ParseProbe(probe)
			require.NoError(t, err)
			streams = append(streams, streamtest.Start(t, w, p))
		}
		for i := range 30 {
			mustApply(t, b, programs[i%len(programs)].MustRuleset())
		}
		for _, stop := range streams {
			fates := stop()
			assert.NotEmpty(t, fates, "a stream without connections shows nothing")
			for fate, n := range fates {
				assert.True(t, strings.HasPrefix(fate, "proxy:1500"), "%s, %d times", fate, n)
				assert.Positive(t, n)
			}
		}
	})
}
