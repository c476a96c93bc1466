package envoy

import (
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/envoy"
)

// probes are the kubelet's and Prometheus's, which reach the proxy itself.
func (p *pod) probes(t *testing.T, family int) {
	for listener, port := range map[string]uint16{"health": 15021, "metrics": 15090} {
		dst := netip.AddrPortFrom(podIP[family], port)
		client, local := p.fromOut.client(t, nil)
		resp, err := client.Get("http://" + dst.String() + "/") //nolint:noctx // ends with the client's timeout
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, listener == "metrics", strings.Contains(string(text), "envoy_server_live"))
		found, err := p.proxy.Await(1, to(dst, *local))
		require.NoError(t, err)
		require.Len(t, found, 1)
		assert.Equal(t, listener, found[0].Listener)
		assert.Equal(t, dst.String(), found[0].Socket, "its own port, and not by way of another")
	}
}

// rewrittenProbes are the kubelet's probes of the application as Istio's injector rewrites them: they ask the agent beside Envoy, at
// port 15020, which asks the application from the address that the rules leave alone. Envoy sees neither.
func (p *pod) rewrittenProbes(t *testing.T, family int) {
	const agentPort = 15020
	dst := netip.AddrPortFrom(podIP[family], portHTTP)
	source := envoy.Istio().Source[family]
	probe, _ := caller{netns: p.world.Pod, owner: proxyID, from: source}.client(t, nil)
	asked := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/app-health/cart/readyz", func(w http.ResponseWriter, r *http.Request) {
		asked <- r.RemoteAddr
		resp, err := probe.Get("http://" + dst.String() + "/") //nolint:noctx // ends with the client's timeout
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = resp.Body.Close()
		w.Header().Set("Seen", resp.Header.Get("Seen"))
		w.WriteHeader(resp.StatusCode)
	})
	agent := servers{who: "agent", owner: proxyID}
	server := &http.Server{Handler: mux} //nolint:gosec // its client is this test
	l := agent.listen(t, p.world.Pod, []string{"0.0.0.0", "::"}[family], agentPort)
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()

	before := p.count(t)
	kubelet, local := p.fromOut.client(t, nil)
	url := "http://" + netip.AddrPortFrom(podIP[family], agentPort).String() + "/app-health/cart/readyz"
	saw, _, _ := request(t, kubelet, http.MethodGet, url, nil)
	assert.Equal(t, *local, <-asked, "the kubelet itself asks the agent")
	assert.Equal(t, "app", saw.Server)
	assert.Equal(t, source, netip.MustParseAddrPort(saw.Remote).Addr())

	p.only(t, http1(t, p.fromOut, dst, nil), dst, "http") // had Envoy seen the others, it would have logged them before
	assert.Equal(t, before+1, p.count(t))
}
