package runtime

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/istio"
)

// testTransparent: inbound connections that keep their addresses, which takes
// routes and marks in the pod as well as rules: the proxy sees who the client is.
func testTransparent(t *testing.T, k kind) {
	for _, backend := range some(k, []string{"iptables", "nftables"}) {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t, k, bridge(true))
			n.runAgent(t, "--backend="+backend)
			ns := n.namespace(t)
			s := n.run(t, meshed(ns, "transparent", transparent, excluding, proxyEnv(istio.DualStack, "true")))
			serving(t, s)
			ips := addrs(t, s)
			require.Len(t, ips, 2)
			for i, ip := range ips {
				client := []string{elsewhere4, elsewhere6}[i]
				assert.Equal(t, "proxy:15006 orig="+at(ip, 8080)+" peer="+client, fromHostAs(client, at(ip, 8080)))
				assert.Equal(t, "app:9090 orig="+at(ip, excludedIn)+" peer="+client, fromHostAs(client, at(ip, excludedIn)))
				out := []string{nowhere4, nowhere6}[i]
				requireFates(t, s, "app", map[string]string{"tcp:" + hostAt(out, 80): "proxy:15001 orig=" + hostAt(out, 80)})
			}
		})
	}
}
