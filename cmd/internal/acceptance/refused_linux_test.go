package acceptance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/nodeproxy/nodeproxytest"
	"github.com/meshcni/meshcni/plugin/agentsock"
)

// TestFailsClosed: a pod does not start unless its proxy has it and listens. Its namespace is then as it was, and nobody is told that
// it is captured.
func TestFailsClosed(t *testing.T) {
	for _, backend := range withNFT {
		t.Run(string(backend), func(t *testing.T) {
			n := newNode(t, backend)
			n.start()
			w := newWorld(t)
			p := n.pod("cart", w.Pod, "ambient", worldAddrs...).create()
			before, host := n.rules(w.Pod), ""
			refused := func(says ...string) {
				t.Helper()
				out := p.attachment().Run(t, "ADD")
				code, text := out.Failure()
				assert.EqualValues(t, 11, code, "%s", out.Stdout)
				for _, s := range says {
					assert.Contains(t, text, s)
				}
				assert.Equal(t, before, n.rules(w.Pod))
				assert.NotContains(t, n.hostSet(), worldAddrs[0], "%s", host)
				assert.NotEqual(t, "enabled", n.Pod(t, n.ns, p.Name).Annotations[status])
			}
			refused("hand-over", "no proxy is connected")
			for name, f := range map[string]nodeproxytest.Faults{
				"it refuses":               {Nack: -1},
				"it does not answer":       {DropAcks: -1},
				"it lies about the tunnel": {Deaf: []uint16{15008}},
				"it lies about names":      {Deaf: []uint16{15053}},
				"it dies when it is asked": {ExitAfter: 1},
			} {
				t.Run(name, func(t *testing.T) {
					proxy := n.proxy(nodeproxytest.Faults{})
					n.until("it is ready", func() bool { return proxy.State().Ready })
					proxy.SetFaults(f)
					refused()
					if f.ExitAfter == 0 {
						_, has := proxy.State().Pod(p.UID)
						assert.False(t, has && f.DropAcks == 0, "the proxy has it")
					}
					proxy.Kill()
				})
			}
			n.agent.Kill()
			refused("agent")
			n.start()
			n.proxy(nodeproxytest.Faults{})
			p.add()
			n.becomes(p, agentsock.Captured)
			require.Contains(t, n.hostSet(), worldAddrs[0])
		})
	}
}
