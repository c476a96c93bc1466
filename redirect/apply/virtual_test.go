//go:build linux

package apply_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// TestLookUpFromAVirtualNetwork: the proxy's answer is in the same conntrack
// zone as the question, so that the asker gets it.
func TestLookUpFromAVirtualNetwork(t *testing.T) {
	r := istio.DefaultRedirect()
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: istio.DNSPort}
	r.VirtualNetworks = []redirect.VirtualNetwork{{Interface: "virt0", Local: netip.MustParsePrefix("10.99.0.0/24")}}
	probe, err := netnstest.ParseProbe("vm udp 0/0 -> 10.96.0.10:53")
	require.NoError(t, err)
	for _, v := range append([]ruleset.Backend{ruleset.BackendNftables}, variants...) {
		w := netnstest.NewWorld(t, netnstest.Options{})
		mustApply(t, choose(t, w.Pod, v), r.MustRuleset())
		assert.Equal(t, "proxy:15053/udp", w.Run([]netnstest.Probe{probe})[probe.String()], v)
	}
}

// TestAnswersBehindThePod: where the pod translates the address of an inner container, or of a virtual machine, each asker
// gets the answer to its own look-up, though all ask one server from one port: that behind the pod, the application, and the
// proxy.
func TestAnswersBehindThePod(t *testing.T) {
	sidecar, node := istio.DefaultRedirect(), byMark()
	for _, r := range []*redirect.Redirect{&sidecar, &node} {
		r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: istio.DNSPort}
	}
	const (
		docker   = "iptables-nft -t nat -A POSTROUTING -s 10.99.0.0/24 ! -o virt0 -j MASQUERADE"
		kubevirt = `nft 'add table ip nat2; add chain ip nat2 in { type nat hook prerouting priority -100; }; add chain ip nat2 out { type nat hook postrouting priority 100; }; ` +
			`add rule ip nat2 in iifname eth0 tcp dport 22 dnat to 10.99.0.2; add rule ip nat2 out ip saddr 10.99.0.2 masquerade'`
	)
	const server = " -> 10.96.0.10:53 from "
	for _, v := range everyBackend {
		for proxy, r := range map[string]redirect.Redirect{"1337/1337": sidecar, "0/0": node} {
			for name, translate := range map[string]string{"docker": docker, "kubevirt": kubevirt} {
				t.Run(string(v)+" "+proxy+" "+name, func(t *testing.T) {
					mark := ""
					if !r.Proxy.Mark.IsZero() {
						mark = fmt.Sprintf(" mark %#x", r.Proxy.Mark.Value)
					}
					w := netnstest.NewWorld(t, netnstest.Options{ProxyMark: r.Proxy.Mark.Value})
					shell(t, w.Pod, translate)
					mustApply(t, choose(t, w.Pod, v), r.MustRuleset())
					for range 2 {
						for _, ask := range [][2]string{
							{"vm udp 0/0" + server + "10.99.0.2 port 40053", "out:53/udp"},
							{"pod udp 1000/1000" + server + "10.244.1.5 port 40053", "proxy:15053/udp"},
							{"pod udp " + proxy + server + "10.244.1.5 port 40053" + mark, "out:53/udp"},
						} {
							probe, err := netnstest.ParseProbe(ask[0])
							require.NoError(t, err)
							assert.Equal(t, ask[1], w.Run([]netnstest.Probe{probe})[ask[0]], ask[0])
						}
					}
				})
			}
		}
	}
}

// TestWildcardInterface: a name with + at its end means any that begins so, to the kernel with each backend and to the
// tracer. The pod's interfaces are eth0, net1 and virt0.
func TestWildcardInterface(t *testing.T) {
	probe, err := netnstest.ParseProbe("vm tcp 0/0 -> 198.51.100.10:80")
	require.NoError(t, err)
	packet, err := trace.ParsePacket("in tcp from 10.99.0.2 -> 198.51.100.10:80 in virt0")
	require.NoError(t, err)
	for _, v := range append([]ruleset.Backend{ruleset.BackendNftables}, variants...) {
		w := netnstest.NewWorld(t, netnstest.Options{})
		b := choose(t, w.Pod, v)
		for name, captured := range map[string]bool{"virt0": true, "virt0+": true, "vir+": true, "v+": true, "virt1+": false, "br+": false, "virt": false} {
			r := istio.DefaultRedirect()
			r.VirtualNetworks = []redirect.VirtualNetwork{{Interface: name, Local: netip.MustParsePrefix("10.99.0.0/24")}}
			rs := r.MustRuleset()
			mustApply(t, b, rs)
			assert.Equal(t, captured, w.Run([]netnstest.Probe{probe})[probe.String()] == "proxy:15001 orig=198.51.100.10:80", "%s: %s", v, name)
			traced, err := trace.Trace(rs, packet)
			require.NoError(t, err)
			assert.Equal(t, captured, traced.ToPort == 15001, "%s: traced", name)
			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.Empty(t, diffs, "%s: %s", v, name)
		}
	}
}
