package ambient_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
)

// TestTunnel plays the whole way of a connection that arrives in the mesh's
// tunnel: a client outside reaches the proxy's listener, and the proxy the
// application, from the client's address. Neither what the pod keeps from
// capture nor a family that is to be discarded is an obstacle.
func TestTunnel(t *testing.T) {
	const client4, client6 = "198.51.100.10", "2001:db8::10"
	tests := []struct {
		name        string
		annotations map[string]string
		change      func(*redirect.Redirect)
		direct      string // what a client gets that comes without the tunnel, over IPv6; empty: it is not asked
	}{
		{"captured", nil, nil, "proxy:15006 orig=[fd00:10:244::5]:8080"},
		{"no look-ups", map[string]string{ambient.DNSCapture: "false"}, nil, "proxy:15006 orig=[fd00:10:244::5]:8080"},
		{"inbound bypass", map[string]string{"ambient.istio.io/bypass-inbound-capture": "true"}, nil, "app:8080 orig=[fd00:10:244::5]:8080"},
		{"IPv6 is discarded", nil, func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyDrop }, ""},
	}
	for _, backend := range dialecttest.Backends {
		t.Run(string(backend), func(t *testing.T) {
			for _, tt := range tests {
				t.Run(tt.name, func(t *testing.T) {
					// The tunnel's listener is the test's own.
					w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{15001, 15006, 15053}})
					_, r, err := dialecttest.Case{Pod: labelled("ambient", tt.annotations)}.Rules(ambient.New(ambient.Options{}))
					require.NoError(t, err)
					if tt.change != nil {
						tt.change(&r)
					}
					set(t, w, backend, r.MustRuleset())
					serveTunnel(t, w.Pod, "10.244.1.5:15008", client4, "10.244.1.5:8080")
					serveTunnel(t, w.Pod, "[fd00:10:244::5]:15008", client6, "[fd00:10:244::5]:8080")
					assert.Equal(t, "app:8080 orig=10.244.1.5:8080", ask(t, w.Out, client4, "10.244.1.5:15008", 0))
					assert.Equal(t, "app:8080 orig=[fd00:10:244::5]:8080", ask(t, w.Out, client6, "[fd00:10:244::5]:15008", 0))
					if tt.direct != "" {
						assert.Equal(t, tt.direct, ask(t, w.Out, client6, "[fd00:10:244::5]:8080", 0))
					}
				})
			}
		})
	}
}

// serveTunnel answers each connection with what the application says to one
// from the client's address, or with why it says nothing.
func serveTunnel(t *testing.T, ns *netnsexec.NetNS, at, client, application string) {
	t.Helper()
	var listener net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		config := net.ListenConfig{Control: marking(ambient.ProxyMark, true)}
		listener, err = config.Listen(t.Context(), "tcp", at)
		return err
	}))
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			var answer []byte
			err = ns.Do(func() (err error) {
				answer, err = connect(context.Background(), client, application, ambient.ProxyMark)
				return err
			})
			if err != nil {
				answer = []byte("proxy to application: " + err.Error())
			}
			_, _ = conn.Write(answer)
			_ = conn.Close()
		}
	}()
}
