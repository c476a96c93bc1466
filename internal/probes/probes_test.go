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
	"github.com/meshcni/meshcni/redirect/ruleset"
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
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
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
			s := w.set(t, backend)
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
		})
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
	for _, backend := range backends {
		for theirs, masq := range masquerade {
			for _, order := range []string{"before", "after"} {
				if backend != ruleset.BackendNftables && theirs != string(backend) {
					continue // two programs at one priority: the one that came first has the say, as with the host's own
				}
				t.Run(fmt.Sprintf("%s, %s %s", backend, theirs, order), func(t *testing.T) {
					w := newWorld(t)
					w.capture(t)
					if order == "before" {
						masq(t, w)
					}
					s := w.set(t, backend)
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
}

// TestAddressesChangeHands: an address belongs to the pod that came last, whose predecessor's late delete means nothing.
func TestAddressesChangeHands(t *testing.T) {
	netnstest.Require(t, needs...)
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			w := newWorld(t)
			w.capture(t)
			require.NoError(t, w.set(t, backend).Put(uid, podAddr))
			// Another process, as after a restart, knows the owner.
			s := w.set(t, ruleset.BackendAuto)
			require.NoError(t, s.Put(otherUID, []netip.Addr{pod4}))
			require.NoError(t, s.Delete(uid))
			entries, err := s.Entries()
			require.NoError(t, err)
			assert.Equal(t, probes.Entries{pod4: otherUID}, entries)
			assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))

			result, err := s.Sync(t.Context(), probes.Entries{pod6: uid, pod4: otherUID})
			require.NoError(t, err)
			assert.Equal(t, []any{backend, 2, 1, 0, false}, []any{result.Backend, result.Entries, result.Added, result.Removed, result.Repaired})
			require.NoError(t, s.Put(otherUID, []netip.Addr{netip.MustParseAddr("::ffff:10.244.1.9")}))
			entries, err = s.Entries()
			require.NoError(t, err)
			assert.Equal(t, probes.Entries{netip.MustParseAddr("10.244.1.9"): otherUID, pod6: uid}, entries, "Put replaces the pod's addresses")
		})
	}
}

// TestLeavesTheHostAsFound: a hundred pods come and go, and then we do.
func TestLeavesTheHostAsFound(t *testing.T) {
	netnstest.Require(t, needs...)
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			w := newWorld(t)
			feed(t, w.host, "*nat\n:KUBE-POSTROUTING - [0:0]\n-A POSTROUTING -j KUBE-POSTROUTING\n-A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE\nCOMMIT\n*raw\nCOMMIT\n", "iptables-legacy-restore")
			do(t, w.host, "ip6tables-legacy", "-t", "nat", "-S")
			do(t, w.host, "ip6tables-legacy", "-t", "raw", "-S") // tables that nobody can remove
			do(t, w.host, "iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "10.0.0.0/8", "-j", "MASQUERADE")
			before := w.state(t)
			s := w.set(t, backend)
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
		})
	}
}

// TestRepair: what somebody breaks is found, says so, and is put right with its entries.
func TestRepair(t *testing.T) {
	netnstest.Require(t, needs...)
	damage := map[ruleset.Backend][][]string{
		ruleset.BackendNftables: {
			{"nft", "delete table inet meshcni-probes"},
			{"nft", "flush chain inet meshcni-probes postrouting"},
			{"nft", "flush chain inet meshcni-probes prerouting"},
			{"nft", "insert rule inet meshcni-probes postrouting accept"},
			{"nft", "delete chain inet meshcni-probes prerouting"},
			{"nft", "add table inet meshcni-probes { flags dormant; }"},
			{"nft", "flush chain inet meshcni-probes postrouting; delete set inet meshcni-probes v6"},
		},
		ruleset.BackendIptablesNFT: {
			{"iptables-nft", "-t", "nat", "-D", "POSTROUTING", "-j", "MESHCNI_PROBES"},
			{"ip6tables-nft", "-t", "nat", "-F", "MESHCNI_PROBES"},
			{"iptables-nft", "-t", "nat", "-F"},
			{"iptables-nft", "-t", "nat", "-I", "POSTROUTING", "-j", "MASQUERADE"},
			{"iptables-nft", "-t", "raw", "-F"},
		},
		ruleset.BackendIptablesLegacy: {
			{"iptables-legacy", "-t", "nat", "-D", "POSTROUTING", "-j", "MESHCNI_PROBES"},
			{"ip6tables-legacy", "-t", "nat", "-F", "MESHCNI_PROBES"},
			{"iptables-legacy", "-t", "nat", "-I", "POSTROUTING", "-j", "MASQUERADE"},
			{"iptables-legacy", "-t", "nat", "-I", "POSTROUTING", "-j", "MESHCNI_PROBES"},
		},
	}
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			w := newWorld(t)
			w.capture(t)
			s := w.set(t, backend)
			want := probes.Entries{pod4: uid, pod6: uid}
			_, err := s.Sync(t.Context(), want)
			require.NoError(t, err)
			for _, cmd := range damage[backend] {
				what := strings.Join(cmd, " ")
				do(t, w.host, cmd[0], cmd[1:]...)
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
			if backend != ruleset.BackendNftables { // half of it gone, the rest is still found
				do(t, w.host, string(backend), "-t", "nat", "-F")
				do(t, w.host, string(backend), "-t", "nat", "-X", "MESHCNI_PROBES")
				do(t, w.host, "ip6t"+strings.TrimPrefix(string(backend), "ipt"), "-t", "nat", "-F")
				do(t, w.host, "ip6t"+strings.TrimPrefix(string(backend), "ipt"), "-t", "nat", "-X", "MESHCNI_PROBES")
			}
			require.NoError(t, s.Remove(t.Context()))
			assert.NotContains(t, strings.ToLower(w.state(t)), "meshcni")
		})
	}
}

// TestMoves: a change of the backend leaves one of them, with all entries; auto keeps what is there.
func TestMoves(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	require.NoError(t, w.set(t, ruleset.BackendIptablesLegacy).Put(uid, podAddr))
	for _, to := range []ruleset.Backend{ruleset.BackendAuto, ruleset.BackendIptablesNFT, ruleset.BackendAuto, ruleset.BackendIptables, ruleset.BackendNftables, ruleset.BackendAuto, ruleset.BackendIptablesLegacy, ruleset.BackendNftables} {
		s := w.set(t, to)
		before, err := w.set(t, ruleset.BackendAuto).Ensure(t.Context())
		require.NoError(t, err)
		result, err := s.Ensure(t.Context())
		require.NoError(t, err, to)
		assert.Equal(t, 2, result.Entries, to)
		switch to {
		case ruleset.BackendAuto, ruleset.BackendIptables:
			assert.Equal(t, before.Backend, result.Backend, "kept")
		default:
			assert.Equal(t, to, result.Backend)
		}
		state := w.state(t)
		there := map[ruleset.Backend]bool{
			ruleset.BackendNftables:       strings.Contains(state, "inet meshcni-probes"),
			ruleset.BackendIptablesNFT:    strings.Contains(state, "chain MESHCNI_PROBES"),
			ruleset.BackendIptablesLegacy: strings.Contains(state, ":MESHCNI_PROBES"),
		}
		assert.Equal(t, map[ruleset.Backend]bool{ruleset.BackendNftables: false, ruleset.BackendIptablesNFT: false, ruleset.BackendIptablesLegacy: false, result.Backend: true}, there, to)
		assert.Equal(t, result.Backend != ruleset.BackendNftables, strings.Contains(state, "ipset meshcni-probes-v4"))
		for _, a := range podAddr {
			assert.Contains(t, ask(t, w.host, a, peerPort), "peer=", to)
		}
	}
}

// TestKeepsTheVariant: what other programs bring to the host later does not make our rules move, nor come twice.
func TestKeepsTheVariant(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	require.NoError(t, w.set(t, ruleset.BackendIptablesLegacy).Put(uid, podAddr))
	do(t, w.host, "iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "10.0.0.0/8", "-j", "MASQUERADE")
	for _, asked := range []ruleset.Backend{ruleset.BackendAuto, ruleset.BackendIptables} {
		result, err := w.set(t, asked).Ensure(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []any{ruleset.BackendIptablesLegacy, 2, false}, []any{result.Backend, result.Entries, result.Repaired})
	}
	// An agent of before that goes on for a while.
	s := w.set(t, ruleset.BackendNftables)
	require.NoError(t, s.Put(uid, podAddr))
	require.NoError(t, w.set(t, ruleset.BackendIptablesLegacy).Put(otherUID, []netip.Addr{pod4.Next()}))
	require.NotContains(t, w.state(t), "inet meshcni-probes")
	result, err := s.Ensure(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []any{ruleset.BackendNftables, 3, true}, []any{result.Backend, result.Entries, result.Repaired})
	assert.NotContains(t, w.state(t), "MESHCNI_PROBES")
}

// TestOthersWithTheSource: a packet with our source that comes from elsewhere, be it a pod, does not get past the host.
func TestOthersWithTheSource(t *testing.T) {
	netnstest.Require(t, needs...)
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel() // it waits for what does not come
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
			require.NoError(t, w.set(t, backend).Put(uid, podAddr))
			for _, a := range podAddr {
				assert.Contains(t, try(t, w.other, a, peerPort, time.Second), "timeout")
			}
		})
	}
}

// TestNoGap: probes go on being exempt while entries change their pods.
func TestNoGap(t *testing.T) {
	netnstest.Require(t, needs...)
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			w := newWorld(t)
			w.capture(t)
			s := w.set(t, backend)
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
		})
	}
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
		`backend "ebpf"`:        {NetNS: ns, IPv4: source4, Backend: "ebpf"},
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
	for _, backend := range backends {
		w := newWorld(t)
		s, err := probes.New(probes.Options{NetNS: w.host, IPv4: source4, Backend: backend})
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
}
