package envoy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/envoy"
)

// TestTraffic: all kinds of traffic through Envoy, under every backend and in both modes, for both families.
func TestTraffic(t *testing.T) {
	for _, backend := range backends {
		for _, mode := range []string{"REDIRECT", "TPROXY"} {
			t.Run(string(backend)+"/"+mode, func(t *testing.T) {
				p := newPod(t, backend, istioPod(mode), istioShape(mode))
				for i, family := range families {
					t.Run(family, func(t *testing.T) {
						for _, k := range kinds() {
							t.Run("out/"+k.name, func(t *testing.T) { p.outbound(t, k, serviceIP[i]) })
							t.Run("in/"+k.name, func(t *testing.T) { p.inbound(t, k, i, mode) })
						}
						p.ways(t, i, mode)
					})
				}
				t.Run("Envoy restarted under load", func(t *testing.T) { p.restart(t) })
			})
		}
	}
}

// outbound talks from the application to the outside.
func (p *pod) outbound(t *testing.T, k kind, to netip.Addr) {
	dst := netip.AddrPortFrom(to, k.port)
	x := k.talk(t, p.fromApp, dst, p.out)
	assert.Equal(t, "out", x.seen.Server)
	e := p.only(t, x, dst, k.log)
	assert.Equal(t, "outbound", e.Listener)
	assert.Equal(t, dst.String(), e.Original)
	assert.Equal(t, dst.String(), e.Upstream)
}

// inbound talks from the outside to the application.
func (p *pod) inbound(t *testing.T, k kind, family int, mode string) {
	dst := netip.AddrPortFrom(podIP[family], k.port)
	x := k.talk(t, p.fromOut, dst, p.app)
	assert.Equal(t, "app", x.seen.Server)
	e := p.only(t, x, dst, k.log)
	assert.Equal(t, "inbound", e.Listener)
	assert.Equal(t, dst.String(), e.Original)
	assert.Equal(t, dst.String(), e.Upstream)
	source := envoy.Istio().Source[family]
	if mode == "TPROXY" {
		source = clientIP[family]
	}
	assert.Equal(t, source, netip.MustParseAddrPort(x.seen.Remote).Addr(), "whom the application sees")
}

// only returns the one entry that Envoy has of the exchange. That there is one, and none of the connection that Envoy made
// itself, means that nothing looped; that the server saw the address from which Envoy connected, that nothing went past it.
func (p *pod) only(t *testing.T, x exchange, dst netip.AddrPort, kind string) envoy.Entry {
	t.Helper()
	found, err := p.proxy.Await(1, func(e envoy.Entry) bool { return to(dst, x.client)(e) || to(dst, x.seen.Remote)(e) })
	require.NoError(t, err)
	require.Len(t, found, 1, "%+v", found)
	e := found[0]
	assert.Equal(t, kind, e.Kind)
	assert.Equal(t, x.client, e.Remote)
	assert.Equal(t, x.client, e.Direct)
	assert.Equal(t, x.seen.Remote, e.Source)
	if e.Path != "/ws" { // ends with its connection, whichever side is the first to go
		assert.Equal(t, "-", e.Flags)
	}
	return e
}

// to is a connection's entries. The destination belongs to it: towards another, the client's port may be used again.
func to(dst netip.AddrPort, client string) func(envoy.Entry) bool {
	return func(e envoy.Entry) bool { return e.Remote == client && e.Original == dst.String() }
}
