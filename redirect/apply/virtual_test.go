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
	"github.com/meshcni/meshcni/redirect/apply"
)

// TestLookUpFromAVirtualNetwork: the proxy's answer is in the same conntrack
// zone as the question, so that the asker gets it.
func TestLookUpFromAVirtualNetwork(t *testing.T) {
	r := istio.Defaults()
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: istio.DNSPort}
	r.VirtualNetworks = []redirect.VirtualNetwork{{Interface: "virt0", Local: netip.MustParsePrefix("10.99.0.0/24")}}
	probe, err := netnstest.ParseProbe("vm udp 0/0 -> 10.96.0.10:53")
	require.NoError(t, err)
	for _, v := range append([]apply.Name{apply.Nftables}, variants...) {
		w := netnstest.NewWorld(t, netnstest.Options{})
		mustApply(t, choose(t, w.Pod, v), r.MustRuleset())
		assert.Equal(t, "proxy:15053/udp", w.Run([]netnstest.Probe{probe})[probe.String()], v)
	}
}
