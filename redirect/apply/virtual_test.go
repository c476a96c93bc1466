//go:build linux

package apply_test

import (
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
