//go:build linux

package probes_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
)

var _ nodecontrol.Probes = (*probes.Set)(nil)

var needs = []netnstest.Need{netnstest.Root, netnstest.Binary("ip"), netnstest.Binary("nft"), netnstest.Binary("iptables-legacy"), netnstest.Binary("iptables-nft")}

const (
	uid      = types.UID("0b5e1ab4-7d5c-4b53-9d54-8a2f3f1c9a01")
	otherUID = types.UID("5f6c2c54-0d9f-4f0c-8a3e-1c2d3e4f5a6b")
)

// TestProbesGetTheSource: what the host's own sockets send to a captured pod arrives with the source that the pod's
// rules let pass; what the host forwards never does, not even by a DNAT of the host's.
func TestProbesGetTheSource(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	do(t, w.host, "nft", "add table ip svc; add chain ip svc pre { type nat hook prerouting priority -100; }; add chain ip svc out { type nat hook output priority -100; };"+
		"add rule ip svc pre ip daddr 10.96.77.7 dnat to 10.244.1.5; add rule ip svc out ip daddr 10.96.77.7 dnat to 10.244.1.5")
	do(t, w.host, "nft", "add table ip6 svc; add chain ip6 svc pre { type nat hook prerouting priority -100; };"+
		"add rule ip6 svc pre ip6 daddr fd00:96::7 dnat to fd00:10:244::5")
	do(t, w.host, "ip", "route", "add", "10.96.77.7/32", "via", "10.244.1.5")
	service4, service6 := netip.MustParseAddr("10.96.77.7"), netip.MustParseAddr("fd00:96::7")
	for _, a := range podAddr {
		require.Equal(t, "proxy:15006", ask(t, w.host, a, peerPort), "without the exemption")
	}
	s := w.set(t)
	require.NoError(t, s.Put(uid, podAddr))

	assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
	assert.Equal(t, "peer="+source6.String(), ask(t, w.host, pod6, peerPort))
	assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, service4, peerPort), "the host's own, by a service")
	for _, a := range []netip.Addr{pod4, pod6, service4, service6} {
		assert.Equal(t, "proxy:15006", ask(t, w.other, a, peerPort), "forwarded to %s", a)
	}
	entries, err := s.Entries()
	require.NoError(t, err)
	assert.Equal(t, probes.Entries{pod4: uid, pod6: uid}, entries)

	require.NoError(t, s.Delete(uid))
	for _, a := range podAddr {
		assert.Equal(t, "proxy:15006", ask(t, w.host, a, peerPort), "after Delete")
	}
}

// TestBesideMasquerade: others' masquerade has no say about probes, whoever came first and by whatever program.
func TestBesideMasquerade(t *testing.T) {
	netnstest.Require(t, needs...)
	masquerade := map[string]func(*testing.T, *world){
		"nft": func(t *testing.T, w *world) {
			do(t, w.host, "nft", "add table inet cni; add chain inet cni post { type nat hook postrouting priority srcnat; }; add rule inet cni post masquerade")
		},
		"iptables-nft": func(t *testing.T, w *world) {
			do(t, w.host, "iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
			do(t, w.host, "ip6tables-nft", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
		},
		"iptables-legacy": func(t *testing.T, w *world) {
			do(t, w.host, "iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
			do(t, w.host, "ip6tables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
		},
	}
	for theirs, masq := range masquerade {
		for _, order := range []string{"before", "after"} {
			t.Run(theirs+" "+order, func(t *testing.T) {
				w := newWorld(t)
				w.capture(t)
				if order == "before" {
					masq(t, w)
				}
				s := w.set(t)
				require.NoError(t, s.Put(uid, podAddr))
				if order == "after" {
					masq(t, w)
				}
				assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
				assert.Equal(t, "peer="+source6.String(), ask(t, w.host, pod6, peerPort))
				for _, a := range podAddr {
					assert.Equal(t, "proxy:15006", ask(t, w.other, a, peerPort), "forwarded and masqueraded")
				}
			})
		}
	}
}

// TestAddressesChangeHands: an address belongs to the pod that came last, whose predecessor's late delete means nothing.
func TestAddressesChangeHands(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	require.NoError(t, w.set(t).Put(uid, podAddr))
	// Another process, as after a restart, knows the owner.
	s := w.set(t)
	require.NoError(t, s.Put(otherUID, []netip.Addr{pod4}))
	require.NoError(t, s.Delete(uid))
	entries, err := s.Entries()
	require.NoError(t, err)
	assert.Equal(t, probes.Entries{pod4: otherUID}, entries)
	assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))

	result, err := s.Sync(t.Context(), probes.Entries{pod6: uid, pod4: otherUID})
	require.NoError(t, err)
	assert.Equal(t, []any{2, 1, 0, false}, []any{result.Entries, result.Added, result.Removed, result.Repaired})
	require.NoError(t, s.Put(otherUID, []netip.Addr{netip.MustParseAddr("::ffff:10.244.1.9")}))
	entries, err = s.Entries()
	require.NoError(t, err)
	assert.Equal(t, probes.Entries{netip.MustParseAddr("10.244.1.9"): otherUID, pod6: uid}, entries, "Put replaces the pod's addresses")
}

// TestLeavesTheHostAsFound: a hundred pods come and go, and then we do.
func TestLeavesTheHostAsFound(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	feed(t, w.host, "*nat\n:KUBE-POSTROUTING - [0:0]\n-A POSTROUTING -j KUBE-POSTROUTING\n-A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE\nCOMMIT\n*raw\nCOMMIT\n", "iptables-legacy-restore")
	do(t, w.host, "ip6tables-legacy", "-t", "nat", "-S")
	do(t, w.host, "ip6tables-legacy", "-t", "raw", "-S") // tables that nobody can remove
	do(t, w.host, "iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "10.0.0.0/8", "-j", "MASQUERADE")
	before := w.state(t)
	s := w.set(t)
	for i := range 100 {
		pod := types.UID(fmt.Sprintf("pod-%d", i))
		require.NoError(t, s.Put(pod, []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}))
		if i%2 == 0 {
			require.NoError(t, s.Delete(pod))
		}
	}
	result, err := s.Ensure(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 50, result.Entries)
	assert.False(t, result.Repaired)
	require.NoError(t, s.Remove(t.Context()))
	assert.Equal(t, before, w.state(t))
	require.NoError(t, s.Remove(t.Context()), "a second time")
	assert.Equal(t, before, w.state(t))
}

// TestRepair: what somebody breaks is found, says so, and is put right with its entries.
func TestRepair(t *testing.T) {
	netnstest.Require(t, needs...)
	damage := []string{
		"delete table inet meshcni-probes",
		"flush chain inet meshcni-probes postrouting",
		"flush chain inet meshcni-probes prerouting",
		"insert rule inet meshcni-probes postrouting accept",
		"delete chain inet meshcni-probes prerouting",
		"add table inet meshcni-probes { flags dormant; }",
		"flush chain inet meshcni-probes postrouting; delete set inet meshcni-probes v6",
	}
	w := newWorld(t)
	w.capture(t)
	s := w.set(t)
	want := probes.Entries{pod4: uid, pod6: uid}
	_, err := s.Sync(t.Context(), want)
	require.NoError(t, err)
	for _, what := range damage {
		do(t, w.host, "nft", what)
		entries, err := s.Entries()
		require.NoError(t, err, what)
		assert.Empty(t, entries, "nothing is in force after %s", what)
		result, err := s.Sync(t.Context(), want)
		require.NoError(t, err, what)
		assert.True(t, result.Repaired, what)
		result, err = s.Sync(t.Context(), want)
		require.NoError(t, err, what)
		assert.False(t, result.Repaired, "repaired for good: %s", what)
		assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort), what)
		assert.Equal(t, "peer="+source6.String(), ask(t, w.host, pod6, peerPort), what)
	}
	require.NoError(t, s.Remove(t.Context()))
	assert.NotContains(t, strings.ToLower(w.state(t)), "meshcni")
}

// TestOthersWithTheSource: a packet with our source that comes from elsewhere, be it a pod, does not get past the host.
func TestOthersWithTheSource(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	do(t, w.other, "ip", "addr", "add", source4.String()+"/32", "dev", "lo")
	do(t, w.other, "ip", "-6", "addr", "add", source6.String()+"/128", "dev", "lo", "nodad")
	do(t, w.other, "ip", "route", "replace", "default", "via", "10.244.2.1", "src", source4.String())
	do(t, w.other, "ip", "-6", "route", "replace", "default", "via", "fd00:10:244:2::1", "src", source6.String())
	do(t, w.host, "ip", "route", "add", source4.String(), "dev", "other")
	do(t, w.host, "ip", "-6", "route", "add", source6.String(), "via", "fd00:10:244:2::5")
	for _, a := range podAddr {
		require.Contains(t, ask(t, w.other, a, peerPort), "peer=", "it would pass the pod's rules")
	}
	require.NoError(t, w.set(t).Put(uid, podAddr))
	for _, a := range podAddr {
		assert.Contains(t, try(t, w.other, a, peerPort, time.Second), "timeout")
	}
}

// TestNoGap: probes go on being exempt while entries change their pods.
func TestNoGap(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	s := w.set(t)
	require.NoError(t, s.Put(uid, podAddr))
	done := make(chan error)
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			owner := []types.UID{uid, otherUID}[i%2]
			if _, err := s.Sync(t.Context(), probes.Entries{pod4: owner, pod6: owner, netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}): uid}); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 200 {
		assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
	}
	close(stop)
	require.NoError(t, <-done)
}

func TestOptions(t *testing.T) {
	ns := struct{ apply.Namespace }{}
	bad := map[string]probes.Options{
		"no network namespace":  {IPv4: source4},
		"no source address":     {NetNS: ns},
		"address 127.0.0.1":     {NetNS: ns, IPv4: netip.MustParseAddr("127.0.0.1")},
		"address fe80::1":       {NetNS: ns, IPv6: netip.MustParseAddr("fe80::1")},
		"address ::1":           {NetNS: ns, IPv4: netip.MustParseAddr("::1")},
		"address 1.2.3.4":       {NetNS: ns, IPv6: netip.MustParseAddr("1.2.3.4")},
		"set up probe exemptio": {},
	}
	for want, o := range bad {
		_, err := probes.New(o)
		assert.ErrorContains(t, err, want)
	}
	s, err := probes.New(probes.Options{NetNS: ns, IPv4: source4})
	require.NoError(t, err)
	assert.ErrorContains(t, s.Put("a b", []netip.Addr{pod4}), `pod UID "a b"`)
	assert.ErrorContains(t, s.Put(uid, []netip.Addr{netip.MustParseAddr("224.0.0.1")}), "pod address 224.0.0.1")
	_, err = s.Sync(t.Context(), probes.Entries{netip.Addr{}: uid})
	assert.ErrorContains(t, err, "pod address")
}

// TestFamilyWithoutSource: an address of a family that is left out is an error that says so, and the others are in.
func TestFamilyWithoutSource(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	s, err := probes.New(probes.Options{NetNS: w.host, IPv4: source4})
	require.NoError(t, err)
	err = s.Put(uid, podAddr)
	var skipped *nodecontrol.UnexemptError
	require.ErrorAs(t, err, &skipped)
	assert.Equal(t, []netip.Addr{pod6}, skipped.Addrs)
	assert.EqualError(t, err, "[fd00:10:244::5]: no probe exemption over ipv6: no source address is configured")
	entries, err := s.Entries()
	require.NoError(t, err)
	assert.Equal(t, probes.Entries{pod4: uid}, entries)
}
