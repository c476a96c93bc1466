package runtime

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/istio"
)

// testCapture runs pods of every kind in each network and with each backend, and
// sends packets; with the tag long in more of their combinations.
func testCapture(t *testing.T, k kind) {
	networks := map[string]func(bool) string{"ptp": ptp, "bridge": bridge}
	type setUp struct {
		network string
		dual    bool
		backend string
	}
	for _, c := range some(k, []setUp{
		{"ptp", true, "nftables"},
		{"ptp", false, "iptables-nft"},
		{"bridge", true, "iptables-legacy"},
	},
		setUp{"ptp", false, "nftables"},
		setUp{"ptp", true, "iptables-legacy"},
		setUp{"bridge", false, "iptables-legacy"},
		setUp{"bridge", true, "iptables-nft"},
		setUp{"bridge", true, "nftables"},
	) {
		name := c.network + " IPv4 " + c.backend
		if c.dual {
			name = c.network + " dual stack " + c.backend
		}
		t.Run(name, func(t *testing.T) {
			n := newNode(t, k, networks[c.network](c.dual))
			before := n.refused(t) // an API server that starts again refuses, until it has read its roles
			n.runAgent(t, "--backend="+c.backend)
			capture(t, n, c.dual)
			assert.Equal(t, before, n.refused(t), "the manifest grants what is asked for")
		})
	}
}

// refused counts what the API server has refused to ours.
func (n *node) refused(t *testing.T) map[string]int {
	t.Helper()
	refused := map[string]int{}
	for _, user := range []string{agentUser, pluginUser} {
		for what, count := range n.server.Calls(t, user) {
			if strings.Contains(what, "FORBIDDEN") && !strings.Contains(what, " validatingadmissionpolic") { // which each agent asks for now and then
				refused[user+" "+what] = count
			}
		}
	}
	return refused
}

// capture shows what becomes of a pod with exclusions, one with DNS captured and
// one without a mesh.
func capture(t *testing.T, n *node, dual bool) {
	ns := n.namespace(t)
	dualStack := proxyEnv(istio.DualStack, "true")
	before := n.server.Calls(t, pluginUser)

	pods := n.runAll(t,
		meshed(ns, "excludes", excluding, withHostPort, dualStack),
		meshed(ns, "dns", proxyEnv("ISTIO_META_DNS_CAPTURE", "true"), dualStack),
		plain(ns, "plain"))
	excludes, dns, free := pods[0], pods[1], pods[2]
	calls := n.server.Calls(t, pluginUser)
	assert.LessOrEqual(t, calls["get pods"], before["get pods"]+2,
		"one GET for each pod of the mesh, unless the agent has it; for another the runtime's annotations will do")

	nowhere, elsewhere := []string{nowhere4}, []string{elsewhere4}
	if dual {
		nowhere, elsewhere = append(nowhere, nowhere6), append(elsewhere, elsewhere6)
	}
	for _, s := range []*sandbox{excludes, dns, free} {
		serving(t, s)
	}
	require.Len(t, addrs(t, excludes), len(nowhere))
	for i, ip := range addrs(t, excludes) {
		out := func(addr string, port int) string { return "tcp:" + hostAt(addr, port) }
		requireFates(t, excludes, "app", map[string]string{
			out(nowhere[i], 80):               "proxy:15001 orig=" + hostAt(nowhere[i], 80),
			out(elsewhere[i], 80):             "proxy:15001 orig=" + hostAt(elsewhere[i], 80),
			out(elsewhere[i], excludedOut):    "elsewhere:3306",
			"dns:" + hostAt(elsewhere[i], 53): "203.0.113.53",
		})
		requireFates(t, excludes, "istio-proxy", map[string]string{out(elsewhere[i], 80): "elsewhere:80"}) // what the proxy itself sends
		assert.Equal(t, "proxy:15006 orig="+at(ip, 8080), fromHost(at(ip, 8080)))
		assert.Equal(t, "app:9090 orig="+at(ip, excludedIn), fromHost(at(ip, excludedIn)))
	}
	// The network's own plugin translates the address first, the mesh's rules after it.
	assert.Equal(t, "proxy:15006 orig="+at(addrs(t, excludes)[0], 8080), fromHost(hostAt(nodeIP, hostPort)))

	want := map[string]string{}
	for _, kind := range []string{"dns:", "dnstcp:"} {
		for _, addr := range nowhere {
			want[kind+hostAt(addr, 53)] = "192.0.2.53"
		}
	}
	requireFates(t, dns, "app", want)
	requireFree(t, free)
	for i := range nowhere {
		requireFates(t, free, "app", map[string]string{"tcp:" + hostAt(elsewhere[i], 80): "elsewhere:80"})
	}
}
