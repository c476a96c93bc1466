//go:build linux

package apply_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/streamtest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestNFTTampering changes the live rules behind our back: Check says what,
// and Apply puts it right.
func TestNFTTampering(t *testing.T) {
	r := redirect.Default()
	r.Inbound.ExcludePorts = redirect.Ports(22, 9090)
	r.Outbound.ExcludeCIDRs = redirect.Prefixes(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16"))
	rs := r.MustRuleset()
	for name, tc := range map[string]struct {
		script string
		want   []string // beginnings of the differences
	}{
		"flushed chain": {"flush chain inet mesh nat/MESH_REDIRECT", []string{
			"ipv4 nat/MESH_REDIRECT:1 missing: -p tcp -j REDIRECT --to-ports 15001",
			"ipv6 nat/MESH_REDIRECT:1 missing: -p tcp -j REDIRECT --to-ports 15001",
		}},
		"rule in front": {`insert rule inet mesh nat/MESH_OUTPUT ip6 daddr fd00::/16 meta mark 7 tcp dport 80 counter accept comment "let me"`, []string{
			`ipv6 nat/MESH_OUTPUT:1 unexpected: meta nfproto ipv6 ip6 daddr fd00::/16 meta mark 7 meta l4proto tcp th dport 80 counter accept comment "let me"`,
		}},
		"other target": {"flush chain inet mesh nat/MESH_REDIRECT; add rule inet mesh nat/MESH_REDIRECT meta l4proto tcp redirect to :9", []string{
			"ipv4 nat/MESH_REDIRECT:1 missing: -p tcp -j REDIRECT --to-ports 15001",
			"ipv6 nat/MESH_REDIRECT:1 missing: -p tcp -j REDIRECT --to-ports 15001",
			"ipv4 nat/MESH_REDIRECT:1 unexpected: meta l4proto tcp redirect to :9",
		}},
		"port added to a set": {"add element inet mesh nat_inbound_dport { 80 }", []string{
			"ipv4 nat/MESH_INBOUND:1 missing: -p tcp -m multiport --dports 22,9090 -j RETURN",
			"ipv6 nat/MESH_INBOUND:1 missing: -p tcp -m multiport --dports 22,9090 -j RETURN",
			"ipv4 nat/MESH_INBOUND:1 unexpected: meta l4proto tcp th dport @nat_inbound_dport return",
		}},
		"prefix taken from a set": {"delete element inet mesh nat_output_ip_daddr { 10.0.0.0/8 }", []string{
			"ipv4 nat/MESH_OUTPUT:5 missing: -d 10.0.0.0/8 -j RETURN",
			"ipv4 nat/MESH_OUTPUT:6 missing: -d 192.168.0.0/16 -j RETURN",
			"ipv4 nat/MESH_OUTPUT:6 unexpected: meta nfproto ipv4 ip daddr @nat_output_ip_daddr return",
		}},
		"policy": {"add chain inet mesh nat/OUTPUT { policy drop; }", []string{
			"ipv4 nat/OUTPUT:0 unexpected: chain of another kind",
			"ipv4 nat/OUTPUT:1 missing: -j MESH_OUTPUT", "ipv6 nat/OUTPUT:1 missing: -j MESH_OUTPUT",
		}},
		"chain of another kind": {"flush chain inet mesh nat/OUTPUT; delete chain inet mesh nat/OUTPUT; " +
			"add chain inet mesh nat/OUTPUT { type nat hook output priority 5; }", []string{
			"ipv4 nat/OUTPUT:0 unexpected: chain of another kind",
			"ipv4 nat/OUTPUT:1 missing: -j MESH_OUTPUT", "ipv6 nat/OUTPUT:1 missing: -j MESH_OUTPUT",
		}},
		"chain more": {"add chain inet mesh stray; add chain inet mesh mangle/X; add rule inet mesh mangle/X goto stray", []string{
			"ipv4 /stray:0 unexpected: ", "ipv4 mangle/X:1 unexpected: goto stray",
		}},
		"dormant": {"add table inet mesh { flags dormant; }", []string{"ipv4 nat/PREROUTING:0 unexpected: chain of another kind"}},
		"gone":    {"delete table inet mesh", []string{"ipv4 nat/PREROUTING:1 missing: -j MESH_PREROUTING", "ipv6 nat/PREROUTING:1 missing"}},
		"emptied": {"delete table inet mesh; add table inet mesh", []string{"ipv4 nat/PREROUTING:1 missing: -j MESH_PREROUTING"}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			b := apply.NewNFTables(ns)
			_, err := b.Apply(t.Context(), rs)
			require.NoError(t, err)
			clean := nft(t, ns, "", "list", "ruleset")
			nft(t, ns, tc.script, "-f", "-")

			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			var got []string
			for _, d := range diffs {
				got = append(got, d.String())
			}
			for _, want := range tc.want {
				assert.Condition(t, func() bool {
					for _, g := range got {
						if strings.HasPrefix(g, want) {
							return true
						}
					}
					return false
				}, "%s\nis not in\n%s", want, strings.Join(got, "\n"))
			}
			if !strings.Contains(name, "dormant") && !strings.Contains(name, "gone") && !strings.Contains(name, "emptied") {
				assert.Len(t, got, len(tc.want), strings.Join(got, "\n"))
			}

			result, err := b.Apply(t.Context(), rs)
			require.NoError(t, err)
			assert.Equal(t, 1, result.Transactions)
			assert.ElementsMatch(t, strings.Split(clean, "\n"), strings.Split(nft(t, ns, "", "list", "ruleset"), "\n"))
			diffs, err = b.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			require.NoError(t, b.Remove(t.Context(), rs.Owner()))
			assert.Empty(t, nft(t, ns, "", "list", "ruleset"))
		})
	}
}

// TestNFTBesideWhatStays: what the owner left cannot be removed, since somebody uses it in a way that is not seen. Then our
// table goes again.
func TestNFTBesideWhatStays(t *testing.T) {
	ns := netnstest.New(t)
	nft(t, ns, "table ip nat { chain MESH_OUTPUT { counter; }; "+
		"chain OUTPUT { type nat hook output priority -100; ip daddr vmap { 9.9.9.9 : jump MESH_OUTPUT }; }; }", "-f", "-")
	before := nft(t, ns, "", "list", "ruleset")
	_, err := apply.NewNFTables(ns).Apply(t.Context(), redirect.Default().MustRuleset())
	require.ErrorIs(t, err, unix.EBUSY)
	assert.Equal(t, before, nft(t, ns, "", "list", "ruleset"))
}

// TestNFTAfterIptables: what the owner left through iptables-nft goes in a
// transaction after that which brings the native rules; what others have there stays.
func TestNFTAfterIptables(t *testing.T) {
	r := redirect.Default()
	r.Mode, r.DNS = redirect.ModeTProxy, redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	rs := r.MustRuleset()
	ns := netnstest.New(t)
	nft(t, ns, "table ip nat { chain OUTPUT { type nat hook output priority -100; ip daddr 9.9.9.9 accept; }; }", "-f", "-")
	_, err := choose(t, ns, ruleset.BackendIptablesNFT).Apply(t.Context(), rs)
	require.NoError(t, err)
	require.Contains(t, nft(t, ns, "", "list", "ruleset"), "MESH_OUTPUT_DNS")

	n := apply.NewNFTables(ns)
	diffs, err := n.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Contains(t, fmt.Sprint(diffs), "ipv6 raw/MESH_OUTPUT:0 unexpected: chain of iptables-nft")
	before := generation(t, ns)
	result, err := n.Apply(t.Context(), rs)
	require.NoError(t, err)
	assert.Equal(t, 2, result.Transactions)
	assert.Equal(t, before+2, generation(t, ns))
	diffs, err = n.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)
	left := nft(t, ns, "", "list", "table", "ip", "nat")
	assert.NotContains(t, left, "MESH")
	assert.Contains(t, left, "ip daddr 9.9.9.9 accept")

	// And when it is the program of iptables-nft that is to be removed.
	require.NoError(t, n.Remove(t.Context(), rs.Owner()))
	_, err = choose(t, ns, ruleset.BackendIptablesNFT).Apply(t.Context(), rs)
	require.NoError(t, err)
	require.NoError(t, n.Remove(t.Context(), rs.Owner()))
	assert.NotContains(t, nft(t, ns, "", "list", "ruleset"), "MESH")
	assert.NotContains(t, ip(t, ns, "rule"), "lookup 133")
}

// visits fails one visit to the namespace, counted from 1.
type visits struct {
	apply.Namespace
	n, fails int
}

var errVisit = errors.New("made to fail")

func (v *visits) Do(fn func() error) error {
	if v.n++; v.n == v.fails {
		return errVisit
	}
	return v.Namespace.Do(fn)
}

func (v *visits) Socket(domain, typ, proto int) (int, error) {
	if proto == unix.NETLINK_ROUTE {
		if v.n++; v.n == v.fails {
			return -1, errVisit
		}
	}
	return v.Namespace.Socket(domain, typ, proto)
}

// TestNFTFailureAfterTheOthers: once the owner's other rules are gone, a failure leaves the new ones in force.
func TestNFTFailureAfterTheOthers(t *testing.T) {
	rs := redirect.Default().MustRuleset()
	ns := netnstest.New(t)
	_, err := choose(t, ns, ruleset.BackendIptablesNFT).Apply(t.Context(), rs)
	require.NoError(t, err)
	_, err = apply.NewNFTables(&visits{Namespace: ns, fails: 2}).Apply(t.Context(), rs)
	require.ErrorIs(t, err, errVisit)
	require.ErrorContains(t, err, "open netlink socket")
	diffs, err := apply.NewNFTables(ns).Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)
}

// TestNFTFailureChangesNothing: a program that the kernel refuses leaves rules
// and routing as they were.
func TestNFTFailureChangesNothing(t *testing.T) {
	ns := netnstest.New(t)
	b := apply.NewNFTables(ns)
	good := redirect.Default().MustRuleset()
	_, err := b.Apply(t.Context(), good)
	require.NoError(t, err)
	before, rules := nft(t, ns, "", "list", "ruleset"), ip(t, ns, "rule")

	r := redirect.Default()
	r.Mode = redirect.ModeTProxy
	bad := r.MustRuleset()
	c := bad.IPv6.Chain(ruleset.Mangle, "MESH_OUTPUT")
	c.Rules = append(c.Rules, ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionTProxy, Port: 15006, Mark: 1}, Comment: "not for this hook"})
	_, err = b.Apply(t.Context(), bad)
	require.ErrorContains(t, err, "add rule to chain mangle/MESH_OUTPUT: meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :15006 meta mark set 0x1 accept: operation not supported")
	assert.Equal(t, before, nft(t, ns, "", "list", "ruleset"))
	assert.Equal(t, rules, ip(t, ns, "rule"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Apply(ctx, good)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, before, nft(t, ns, "", "list", "ruleset"))
}

func TestNFTWithoutIPv6(t *testing.T) {
	apply.HideIPv6(t)
	ns := netnstest.New(t)
	b := apply.NewNFTables(ns)
	rs := redirect.Default().MustRuleset()
	result, err := b.Apply(t.Context(), rs)
	require.NoError(t, err)
	assert.Equal(t, []ruleset.Family{ruleset.IPv6}, result.Skipped)
	assert.NotContains(t, nft(t, ns, "", "list", "ruleset"), "ip6")
	diffs, err := b.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)
	result, err = b.Apply(t.Context(), rs)
	require.NoError(t, err)
	assert.False(t, result.Changed)
}

// TestNFTLargeSets: more elements than one attribute or a default socket
// buffer takes.
func TestNFTLargeSets(t *testing.T) {
	var prefixes []netip.Prefix
	for i := range 4900 {
		prefixes = append(prefixes,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 25),
			netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/64", i)))
	}
	r := redirect.Default()
	r.Outbound.CIDRs = redirect.Prefixes(prefixes...)
	rs := r.MustRuleset()
	ns := netnstest.New(t)
	b := apply.NewNFTables(ns)
	_, err := b.Apply(t.Context(), rs)
	require.NoError(t, err)
	diffs, err := b.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)
	assert.Contains(t, nft(t, ns, "", "list", "ruleset"), "10.19.35.0/25")
}

// TestNFTTableNamedLikeAKeyword: nft itself can still read and list the table.
func TestNFTTableNamedLikeAKeyword(t *testing.T) {
	for _, prefix := range []string{"REDIRECT_", "TPROXY", "IP_", "ALL_"} {
		r := redirect.Default()
		r.Names.ChainPrefix = prefix
		ns := netnstest.New(t)
		nft(t, ns, apply.NFT(r.MustRuleset()), "-f", "-")
		nft(t, ns, "", "list", "table", "inet", strings.Fields(apply.NFT(r.MustRuleset()))[2])
	}
}

// TestNFTConcurrent: callers that meet in one namespace all succeed, and one
// of their programs is there, whole.
func TestNFTConcurrent(t *testing.T) {
	ns := netnstest.New(t)
	other := redirect.Default()
	other.Mode, other.Outbound.ExcludePorts = redirect.ModeRedirect, redirect.Ports(1, 2, 3)
	programs := []ruleset.Ruleset{redirect.Default().MustRuleset(), other.MustRuleset()}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				_, err := apply.NewNFTables(ns).Apply(t.Context(), programs[(i+j)%2])
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	matching := 0
	for _, rs := range programs {
		diffs, err := apply.NewNFTables(ns).Check(t.Context(), rs)
		require.NoError(t, err)
		if len(diffs) == 0 {
			matching++
		}
	}
	assert.Equal(t, 1, matching)
}

// TestNFTNoGap: while programs replace each other, no connection escapes.
func TestNFTNoGap(t *testing.T) {
	w := netnstest.NewWorld(t, netnstest.Options{})
	b := apply.NewNFTables(w.Pod)
	programs := make([]ruleset.Ruleset, 2)
	for i := range programs {
		r := redirect.Default()
		r.Outbound.ExcludePorts = redirect.Ports(uint16(6000 + i))
		programs[i] = r.MustRuleset()
	}
	_, err := b.Apply(t.Context(), programs[0])
	require.NoError(t, err)
	out, err := netnstest.ParseProbe("pod tcp 1000/1000 -> 10.96.5.5:80")
	require.NoError(t, err)
	in, err := netnstest.ParseProbe("out tcp 0/0 -> 10.244.1.5:8080")
	require.NoError(t, err)
	stopOut, stopIn := streamtest.Start(t, w, out), streamtest.Start(t, w, in)
	for i := range 200 {
		result, err := b.Apply(t.Context(), programs[(i+1)%2])
		require.NoError(t, err)
		require.Equal(t, 1, result.Transactions)
	}
	for fate, counts := range map[string]map[string]int{
		"proxy:15001 orig=10.96.5.5:80": stopOut(), "proxy:15006 orig=10.244.1.5:8080": stopIn(),
	} {
		assert.Len(t, counts, 1)
		assert.Positive(t, counts[fate], counts)
	}
}

// TestTProxyWithoutListener: a transparent proxy that does not listen yet means
// no connection, under either backend, and not one that goes past it.
func TestTProxyWithoutListener(t *testing.T) {
	r := redirect.Default()
	r.Mode, r.Proxy.InboundPort = redirect.ModeTProxy, 15999
	for _, name := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendNftables} {
		w := netnstest.NewWorld(t, netnstest.Options{Patience: 300 * time.Millisecond})
		_, err := choose(t, w.Pod, name).Apply(t.Context(), r.MustRuleset())
		require.NoError(t, err)
		for _, probe := range []string{"out tcp 0/0 -> 10.244.1.5:8080", "out tcp 0/0 -> [fd00:10:244::5]:8080"} {
			p, err := netnstest.ParseProbe(probe)
			require.NoError(t, err)
			assert.Equal(t, map[string]string{probe: "timeout"}, w.Run([]netnstest.Probe{p}), name)
		}
	}
}
