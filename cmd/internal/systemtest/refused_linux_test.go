package systemtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
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
			refused := func(deadline string, says ...string) {
				t.Helper()
				out := p.within(deadline).Run(t, "ADD")
				code, text := out.Failure()
				assert.EqualValues(t, 11, code, "%s", out.Stdout)
				for _, s := range says {
					assert.Contains(t, text, s)
				}
				assert.Equal(t, before, n.rules(w.Pod))
				assert.NotContains(t, n.hostSet(), worldAddrs[0], "%s", host)
				assert.NotEqual(t, "enabled", n.Pod(t, n.ns, p.Name).Annotations[redirection])
			}
			refused("2s", " for the node's proxy: ", "hand-over", "no proxy is connected")
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
					refused(map[bool]string{true: "5s", false: "20s"}[f.ExitAfter > 0])
					if f.ExitAfter == 0 {
						_, has := proxy.State().Pods[p.UID]
						assert.False(t, has && f.DropAcks == 0, "the proxy has it")
					}
					proxy.Kill()
				})
			}
			n.agent.Kill()
			refused("2s", " for the node's agent: ")
			n.start()
			n.proxy(nodeproxytest.Faults{})
			p.add()
			n.becomes(p, status.StateCaptured)
			require.Contains(t, n.hostSet(), worldAddrs[0])
		})
	}
}

// TestAddAwaits: an ADD outlasts an agent that is replaced and a proxy that connects again, whichever of them is away first.
func TestAddAwaits(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	for i, away := range []string{"proxy", "agent", "both"} {
		t.Run(away, func(t *testing.T) {
			address := fmt.Sprintf("10.244.1.%d", i+5)
			p := n.pod("cart-"+away, small(t, address), "ambient", address).create()
			if away != "proxy" {
				n.agent.Kill()
			}
			var proxy *nodeproxytest.Proxy
			if away == "agent" {
				proxy = n.startProxy()
			}
			added := make(chan binarytest.Outcome, 1)
			a := p.within("10m")
			go func() { added <- a.Run(t, "ADD") }()
			if away == "proxy" {
				n.until("it asks the agent", func() bool { return strings.Contains(n.get("/readyz"), "no-proxy") })
			} else {
				n.start()
			}
			if proxy == nil {
				proxy = n.startProxy()
			}
			out := <-added
			require.Zero(t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
			n.becomes(p, status.StateCaptured)
			proxy.Kill()
			n.until("it is gone", func() bool { return strings.Contains(n.get("/readyz"), "no-proxy") })
		})
	}
}
