//go:build linux

package apply_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// hosts are n addresses of each family with gaps between them, and the prefixes that are given besides.
func hosts(n int, more ...string) redirect.PrefixSet {
	var list []netip.Prefix
	for _, s := range more {
		list = append(list, netip.MustParsePrefix(s))
	}
	for i := range n {
		i *= 2
		list = append(list,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 32),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x11, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), 128))
	}
	return redirect.Prefixes(list...)
}

// longLists excludes what more names, among so many other addresses, and ports.
func longLists(n int, more ...string) redirect.Redirect {
	r := redirect.Default()
	r.Outbound.ExcludeCIDRs = hosts(n, more...)
	for p := uint16(20001); p < 20200; p += 2 {
		r.Outbound.ExcludePorts = r.Outbound.ExcludePorts.Union(redirect.Ports(p))
	}
	r.Outbound.ExcludePorts = r.Outbound.ExcludePorts.Union(redirect.Ports(3306))
	return r
}

// TestSets: a long list is one rule with a set by nftables, and one rule for each by iptables. Packets meet the same, and what comes in place of a
// list comes in one transaction.
func TestSets(t *testing.T) {
	t.Parallel()
	for _, name := range []ruleset.Backend{ruleset.BackendNftables, ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
			w := netnstest.NewWorld(t, netnstest.Options{})
			b := choose(t, w.Pod, name)
			probes := func() map[string]string {
				var list []netnstest.Probe
				for _, to := range []string{"10.96.5.5:80", "198.51.100.10:443", "198.51.100.10:3306", "[fd00:96::5]:80", "[2001:db8::10]:443", "[2001:db8::10]:3306"} {
					list = append(list, netnstest.Probe{From: "pod", Proto: "tcp", UID: 1000, GID: 1000, Dst: netip.MustParseAddrPort(to)})
				}
				fates := map[string]string{}
				for p, fate := range w.Run(list) {
					probe, err := netnstest.ParseProbe(p)
					require.NoError(t, err)
					fates[probe.Dst.String()], _, _ = cut(fate)
				}
				return fates
			}
			// Overlapping and neighbouring prefixes, which a set of intervals does not take as they are.
			first := longLists(200, "10.96.0.0/16", "10.96.5.0/24", "10.96.5.5/32", "fd00:96::/64", "fd00:96::5/128", "10.97.0.0/16").MustRuleset()
			result, err := b.Apply(t.Context(), first)
			require.NoError(t, err)
			assert.True(t, result.Changed)
			assert.Equal(t, map[string]string{
				"10.96.5.5:80": "out", "198.51.100.10:443": "proxy", "198.51.100.10:3306": "out",
				"[fd00:96::5]:80": "out", "[2001:db8::10]:443": "proxy", "[2001:db8::10]:3306": "out",
			}, probes())
			diffs, err := b.Check(t.Context(), first)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			again, err := b.Apply(t.Context(), first)
			require.NoError(t, err)
			assert.False(t, again.Changed)

			second := longLists(250, "198.51.100.0/24", "2001:db8::/32").MustRuleset()
			diffs, err = b.Check(t.Context(), second)
			require.NoError(t, err)
			assert.NotEmpty(t, diffs)
			assert.False(t, second.AllMissing(diffs))
			result, err = b.Apply(t.Context(), second)
			require.NoError(t, err)
			if name == ruleset.BackendNftables {
				assert.Equal(t, 1, result.Transactions)
			}
			assert.Equal(t, map[string]string{
				"10.96.5.5:80": "proxy", "198.51.100.10:443": "out", "198.51.100.10:3306": "out",
				"[fd00:96::5]:80": "proxy", "[2001:db8::10]:443": "out", "[2001:db8::10]:3306": "out",
			}, probes())
			live, err := apply.Live(t.Context(), w.Pod, apply.Options{Runner: w.Pod.Sandbox()}, second)
			require.NoError(t, err)
			read, err := live.Ruleset(second)
			require.NoError(t, err, "all of it is understood")
			rules, want := 0, 0
			for _, f := range ruleset.Families {
				for _, c := range read.Family(f).Chains {
					for _, r := range c.Rules {
						rules += 1 + len(r.Dst.More)
					}
				}
				for _, c := range second.Family(f).Chains {
					for _, r := range c.Rules {
						want += 1 + len(r.Dst.More)
					}
				}
			}
			if name != ruleset.BackendNftables { // two matches of 15 and more ports are as many rules
				plain, err := second.Iptables()
				require.NoError(t, err)
				want = plain.IPv4.NumRules() + plain.IPv6.NumRules()
			}
			assert.Equal(t, want, rules)

			require.NoError(t, b.Remove(t.Context(), second.Owner()))
			diffs, err = b.Check(t.Context(), second)
			require.NoError(t, err)
			assert.True(t, second.AllMissing(diffs), "%d differences", len(diffs))
		})
	}
}

// cut returns who had the connection: the proxy, the outside or the application.
func cut(fate string) (who, port string, ok bool) {
	for i := range len(fate) {
		if fate[i] == ':' {
			return fate[:i], fate[i+1:], true
		}
	}
	return fate, "", false
}

// TestSetElementsAreVerified: an element that somebody adds to a set of ours, or takes out of it, is a difference, and is put right.
func TestSetElementsAreVerified(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("nft"))
	ns := netnstest.New(t)
	b := choose(t, ns, ruleset.BackendNftables)
	rs := longLists(100, "10.96.0.0/16", "fd00:96::/64").MustRuleset()
	_, err := b.Apply(t.Context(), rs)
	require.NoError(t, err)
	for _, change := range []string{
		"add element inet mesh nat_output_ip_daddr { 203.0.113.0/24 }",
		"delete element inet mesh nat_output_ip_daddr { 11.0.0.2 }",
		"add element inet mesh nat_output_ip6_daddr { 2001:db8:f::/48 }",
		"delete element inet mesh nat_output_ip6_daddr { fd11::2 }",
		"add element inet mesh nat_output_dport { 443 }",
		"delete element inet mesh nat_output_dport { 20001 }",
	} {
		require.NoError(t, ns.Run(exec.Command("nft", change)), change)
		diffs, err := b.Check(t.Context(), rs)
		require.NoError(t, err)
		require.NotEmpty(t, diffs, change)
		missing := slices.IndexFunc(diffs, func(d ruleset.Difference) bool { return d.Kind == ruleset.KindMissing })
		require.GreaterOrEqual(t, missing, 0, change)
		assert.Less(t, len(diffs[missing].Rule), 400, "a list is not told whole")
		result, err := b.Apply(t.Context(), rs)
		require.NoError(t, err)
		assert.True(t, result.Changed)
		diffs, err = b.Check(t.Context(), rs)
		require.NoError(t, err)
		assert.Empty(t, diffs, change)
	}
}

// TestSetsBeyondIptables: what is too many rules for iptables is refused in words and changes nothing; nftables has it, and so has auto.
func TestSetsBeyondIptables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
	rs := longLists(48_000).MustRuleset()
	for _, name := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		ns := netnstest.New(t)
		b := choose(t, ns, name)
		_, err := b.Apply(t.Context(), rs)
		require.ErrorContains(t, err, "iptables, which knows no sets, would have 96")
		require.ErrorContains(t, err, "10000 are the most")
		_, err = b.Check(t.Context(), rs)
		require.ErrorContains(t, err, "10000 are the most")
		live, err := apply.Live(t.Context(), ns, apply.Options{}, rs)
		require.NoError(t, err)
		assert.Empty(t, live)
	}
	ns := netnstest.New(t)
	b, err := apply.Choose(t.Context(), ns, apply.Options{Runner: ns.Sandbox()})
	require.NoError(t, err)
	result, err := b.Apply(t.Context(), rs)
	require.NoError(t, err)
	assert.Equal(t, ruleset.BackendNftables, result.Backend)
	require.ErrorContains(t, result.Refused, "iptables, which knows no sets")
	diffs, err := b.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)
	live, err := apply.Live(t.Context(), ns, apply.Options{}, rs)
	require.NoError(t, err)
	read, err := live.Ruleset(rs)
	require.NoError(t, err)
	in := read.IPv6.Chain(ruleset.NAT, "MESH_OUTPUT").Rules
	assert.True(t, slices.ContainsFunc(in, func(r ruleset.Rule) bool { return len(r.Dst.More) == 47_999 }))
}

// BenchmarkSets times nftables and a new connection by the number of prefixes that are excluded, of each family half, and says how many times as
// long both take as with ten.
func BenchmarkSets(b *testing.B) {
	netnstest.Require(b, netnstest.Root, netnstest.IPv6)
	sizes := []int{10, 1000, 50_000}
	apply1, connect := map[int][]time.Duration{}, map[int][]time.Duration{}
	for b.Loop() {
		for _, n := range sizes {
			r := redirect.Default()
			r.Outbound.ExcludeCIDRs = hosts(n / 2)
			rs := r.MustRuleset()
			w := netnstest.NewWorld(b, netnstest.Options{})
			start := time.Now()
			_, err := choose(b, w.Pod, ruleset.BackendNftables).Apply(b.Context(), rs)
			require.NoError(b, err)
			apply1[n] = append(apply1[n], time.Since(start))
			connect[n] = append(connect[n], newConnections(b, w.Pod, 200)...)
		}
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds())
	}
	for _, n := range sizes {
		b.ReportMetric(median(apply1[n])/1000, fmt.Sprintf("ms/apply-%d", n))
		b.ReportMetric(median(apply1[n])/median(apply1[10]), fmt.Sprintf("apply-%d/10", n))
		b.ReportMetric(median(connect[n]), fmt.Sprintf("µs/connect-%d", n))
		b.ReportMetric(median(connect[n])/median(connect[10]), fmt.Sprintf("connect-%d/10", n))
	}
}

// newConnections times connections of the application to the outside, which are redirected.
func newConnections(tb testing.TB, ns *netnsexec.NetNS, n int) (took []time.Duration) {
	require.NoError(tb, ns.Do(func() error {
		for range n {
			start := time.Now()
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			to := unix.SockaddrInet4{Port: 80}
			copy(to.Addr[:], net.IPv4(10, 96, 5, 5).To4())
			if err := unix.Connect(fd, &to); err != nil {
				return err
			}
			took = append(took, time.Since(start))
			if err := unix.Close(fd); err != nil {
				return err
			}
		}
		return nil
	}))
	return took
}
