package envoy

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/envoy"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestDemo is `make demo-envoy`: a table of requests with what Envoy saw of each.
func TestDemo(t *testing.T) {
	for _, mode := range []string{"REDIRECT", "TPROXY"} {
		t.Run(mode, func(t *testing.T) {
			p := newPod(t, ruleset.BackendNftables, istioPod(mode), istioShape(mode))
			fmt.Printf("\n== Envoy beside the application at %s and %s; inbound by %s\n\n", podIP[0], podIP[1], mode)
			w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "REQUEST\tTO\tENVOY: LISTENER\tPEER\tORIGINAL DESTINATION\tWENT ON TO\tFROM\tTHE SERVER SAW")
			for i := range families {
				p.show(t, w, "application to a service", p.fromApp, netip.AddrPortFrom(serviceIP[i], portHTTP), 1)
				p.show(t, w, "application to another pod", p.fromApp, netip.AddrPortFrom(clientIP[i], portHTTP), 1)
				p.show(t, w, "application to its own service", p.fromApp, netip.AddrPortFrom(ownIP[i], ownPort), 2)
				p.show(t, w, "application to an excluded port", p.fromApp, netip.AddrPortFrom(serviceIP[i], portExcluded), 0)
				p.show(t, w, "application to an excluded range", p.fromApp, netip.AddrPortFrom(excluded[i], portHTTP), 0)
				p.show(t, w, "client to the application", p.fromOut, netip.AddrPortFrom(podIP[i], portHTTP), 1)
				p.show(t, w, "client to an excluded port", p.fromOut, netip.AddrPortFrom(podIP[i], portExcluded), 0)
			}
			require.NoError(t, w.Flush())
		})
	}
}

// show makes a request, and writes a line for each time that Envoy saw it.
func (p *pod) show(t *testing.T, w *tabwriter.Writer, what string, c caller, dst netip.AddrPort, passes int) {
	t.Helper()
	x := http1(t, c, dst, nil)
	if passes == 0 {
		assert.Equal(t, x.client, x.seen.Remote)
		_, _ = fmt.Fprintf(w, "%s\t%s\t-\t\t\t\t\t%s\n", what, dst, x.seen.Remote)
		return
	}
	peer, to := x.client, dst.String()
	for range passes {
		found, err := p.proxy.Await(1, func(e envoy.Entry) bool { return e.Remote == peer && e.Original == to })
		require.NoError(t, err)
		require.Len(t, found, 1)
		e := found[0]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", what, dst, e.Listener, e.Remote, e.Original, e.Upstream, e.Source, x.seen.Remote)
		peer, to, what = e.Source, e.Upstream, "  and in again"
	}
	assert.Equal(t, peer, x.seen.Remote, "the server's peer is Envoy")
}
