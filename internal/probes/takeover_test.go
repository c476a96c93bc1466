//go:build linux

package probes_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// ipsets makes an agent's sets, with the pod's addresses.
func ipsets(t *testing.T, w *world, name string) {
	t.Helper()
	require.NoError(t, w.host.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		for set, family := range map[string]uint8{name + "-v4": unix.AF_INET, name + "-v6": unix.AF_INET6} {
			if err := h.IpsetCreate(set, "hash:ip", netlink.IpsetCreateOptions{Family: family, Comments: true}); err != nil {
				return err
			}
		}
		if err := h.IpsetAdd(name+"-v4", &netlink.IPSetEntry{IP: pod4.AsSlice(), Comment: string(uid)}); err != nil {
			return err
		}
		return h.IpsetAdd(name+"-v6", &netlink.IPSetEntry{IP: pod6.AsSlice(), Comment: string(uid)})
	}))
}

// rules makes an agent's rules that use the sets, in a chain of its own.
func rules(t *testing.T, w *world, variant, chain, name string) {
	t.Helper()
	for program, family := range map[string]struct{ set, source string }{
		"iptables-" + variant: {name + "-v4", source4.String()}, "ip6tables-" + variant: {name + "-v6", source6.String()},
	} {
		feed(t, w.host, "*nat\n:"+chain+" - [0:0]\n-I POSTROUTING 1 -j "+chain+"\n-A "+chain+" -m owner --socket-exists -p tcp -m set --match-set "+
			family.set+" dst -j SNAT --to-source "+family.source+"\nCOMMIT\n", program+"-restore", "--noflush")
	}
}

func istio(t *testing.T, w *world, variant string) {
	t.Helper()
	ipsets(t, w, "istio-inpod-probes")
	rules(t, w, variant, "ISTIO_POSTRT", "istio-inpod-probes")
}

var predecessors = map[string]func(*testing.T, *world){
	"nft": func(t *testing.T, w *world) {
		do(t, w.host, "nft", `add table inet istio-ambient-nat { set istio-inpod-probes-v4 { type ipv4_addr; elements = { 10.244.1.5 comment "`+string(uid)+`" }; };
			set istio-inpod-probes-v6 { type ipv6_addr; elements = { fd00:10:244::5 comment "`+string(uid)+`" }; };
			chain postrouting { type nat hook postrouting priority 100; meta l4proto tcp skuid 0 ip daddr @istio-inpod-probes-v4 snat ip to 169.254.7.127;
			meta l4proto tcp skuid 0 ip6 daddr @istio-inpod-probes-v6 snat ip6 to `+source6.String()+`; }; }`)
	},
	"iptables-nft":    func(t *testing.T, w *world) { istio(t, w, "nft") },
	"iptables-legacy": func(t *testing.T, w *world) { istio(t, w, "legacy") },
}

// TestTakeOver: the other agent's pods are ours, and nothing of its is in force; no probe meets a moment without exemption.
func TestTakeOver(t *testing.T) {
	netnstest.Require(t, needs...)
	for name, theirs := range predecessors {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.capture(t)
			do(t, w.host, "iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "10.0.0.0/8", "-j", "MASQUERADE")
			theirs(t, w)
			require.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort), "theirs works")
			done := make(chan struct{})
			stop := make(chan struct{})
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					default:
						assert.Equal(t, "peer="+source6.String(), ask(t, w.host, pod6, peerPort))
					}
				}
			}()
			s := w.set(t)
			result, err := s.TakeOver(t.Context())
			close(stop)
			<-done
			require.NoError(t, err)
			assert.Equal(t, 2, result.Entries)
			entries, err := s.Entries()
			require.NoError(t, err)
			assert.Equal(t, probes.Entries{pod4: uid, pod6: uid}, entries)
			assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
			state := w.state(t)
			if name == "nft" {
				assert.NotContains(t, state, "istio")
			} else {
				assert.Contains(t, state, "ipset istio-inpod-probes-v4 0\n")
				assert.Contains(t, state, "ipset istio-inpod-probes-v6 0\n")
			}
			assert.Contains(t, w.state(t), "10.0.0.0/8", "others' rules stay")

			result, err = s.TakeOver(t.Context())
			require.NoError(t, err, "a second time")
			assert.Equal(t, []any{2, false}, []any{result.Entries, result.Repaired})
			require.NoError(t, s.Delete(uid))
			for addr, source := range map[netip.Addr]netip.Addr{pod4: source4, pod6: source6} {
				assert.NotEqual(t, "peer="+source.String(), ask(t, w.host, addr, peerPort), "no rule of theirs gives the source any more")
			}
		})
	}
}

// TestGiveBack: the other agent comes beside ours, and then ours goes.
func TestGiveBack(t *testing.T) {
	netnstest.Require(t, needs...)
	for name, theirs := range predecessors {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.capture(t)
			s := w.set(t)
			require.NoError(t, s.Put(uid, podAddr))
			theirs(t, w)
			assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
			require.NoError(t, s.Remove(t.Context()))
			assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
			assert.Equal(t, "peer="+source6.String(), ask(t, w.host, pod6, peerPort))
			assert.NotContains(t, strings.ToLower(w.state(t)), "meshcni")
		})
	}
}

// TestTakeOverOfNothing is Ensure.
func TestTakeOverOfNothing(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	before := w.state(t)
	s := w.set(t)
	result, err := s.TakeOver(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []any{0, true}, []any{result.Entries, result.Repaired})
	require.NoError(t, s.Remove(t.Context()))
	assert.Equal(t, before, w.state(t))
}
