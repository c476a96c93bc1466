//go:build linux

package probes_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// istioSets makes the sets of istio-cni's ambient agent, with the pod's addresses.
func istioSets(t *testing.T, w *world) {
	t.Helper()
	require.NoError(t, w.host.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		for set, family := range map[string]uint8{"istio-inpod-probes-v4": unix.AF_INET, "istio-inpod-probes-v6": unix.AF_INET6} {
			if err := h.IpsetCreate(set, "hash:ip", netlink.IpsetCreateOptions{Family: family, Comments: true}); err != nil {
				return err
			}
		}
		if err := h.IpsetAdd("istio-inpod-probes-v4", &netlink.IPSetEntry{IP: pod4.AsSlice(), Comment: string(uid)}); err != nil {
			return err
		}
		return h.IpsetAdd("istio-inpod-probes-v6", &netlink.IPSetEntry{IP: pod6.AsSlice(), Comment: string(uid)})
	}))
}

func istioRules(t *testing.T, w *world, variant string) {
	t.Helper()
	for program, family := range map[string]struct{ set, source string }{
		"iptables-" + variant: {"istio-inpod-probes-v4", source4.String()}, "ip6tables-" + variant: {"istio-inpod-probes-v6", source6.String()},
	} {
		feed(t, w.host, "*nat\n:ISTIO_POSTRT - [0:0]\n-I POSTROUTING 1 -j ISTIO_POSTRT\n-A ISTIO_POSTRT -m owner --socket-exists -p tcp -m set --match-set "+
			family.set+" dst -j SNAT --to-source "+family.source+"\nCOMMIT\n", program+"-restore", "--noflush")
	}
}

var predecessors = map[string]func(*testing.T, *world){
	"nft": func(t *testing.T, w *world) {
		do(t, w.host, "nft", `add table inet istio-ambient-nat { set istio-inpod-probes-v4 { type ipv4_addr; elements = { 10.244.1.5 comment "`+string(uid)+`" }; };
			set istio-inpod-probes-v6 { type ipv6_addr; elements = { fd00:10:244::5 comment "`+string(uid)+`" }; };
			chain postrouting { type nat hook postrouting priority 100; meta l4proto tcp skuid 0 ip daddr @istio-inpod-probes-v4 snat ip to 169.254.7.127;
			meta l4proto tcp skuid 0 ip6 daddr @istio-inpod-probes-v6 snat ip6 to `+source6.String()+`; }; }`)
	},
	"iptables-nft":    func(t *testing.T, w *world) { istioSets(t, w); istioRules(t, w, "nft") },
	"iptables-legacy": func(t *testing.T, w *world) { istioSets(t, w); istioRules(t, w, "legacy") },
}

// TestTakeOver: the other agent's pods are ours, and nothing of its is left; no probe meets a moment without exemption.
func TestTakeOver(t *testing.T) {
	netnstest.Require(t, needs...)
	for name, theirs := range predecessors {
		for _, backend := range backends {
			t.Run(name+" to "+string(backend), func(t *testing.T) {
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
				s := w.set(t, backend)
				result, err := s.TakeOver(t.Context())
				close(stop)
				<-done
				require.NoError(t, err)
				assert.Equal(t, []any{backend, 2}, []any{result.Backend, result.Entries})
				entries, err := s.Entries()
				require.NoError(t, err)
				assert.Equal(t, probes.Entries{pod4: uid, pod6: uid}, entries)
				assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
				assert.NotContains(t, strings.ToLower(w.state(t)), "istio")
				assert.Contains(t, w.state(t), "10.0.0.0/8", "others' rules stay")

				result, err = s.TakeOver(t.Context())
				require.NoError(t, err, "a second time")
				assert.Equal(t, []any{2, false}, []any{result.Entries, result.Repaired})
			})
		}
	}
}

// TestGiveBack: the other agent comes beside ours, and then ours goes.
func TestGiveBack(t *testing.T) {
	netnstest.Require(t, needs...)
	for name, theirs := range predecessors {
		for _, backend := range backends {
			t.Run(string(backend)+" to "+name, func(t *testing.T) {
				w := newWorld(t)
				w.capture(t)
				s := w.set(t, backend)
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
}

// TestTakeOverOfNothing is Ensure.
func TestTakeOverOfNothing(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	before := w.state(t)
	s := w.set(t, ruleset.BackendAuto)
	result, err := s.TakeOver(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []any{ruleset.BackendNftables, 0, true}, []any{result.Backend, result.Entries, result.Repaired})
	require.NoError(t, s.Remove(t.Context()))
	assert.Equal(t, before, w.state(t))
}

// foreignSet makes a set of networks.
func foreignSet(t *testing.T, w *world, name string) {
	t.Helper()
	require.NoError(t, w.host.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		return h.IpsetCreate(name, "hash:net", netlink.IpsetCreateOptions{Family: unix.AF_INET, Comments: true})
	}))
}
