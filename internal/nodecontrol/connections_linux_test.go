package nodecontrol_test

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// echo is a server in a namespace that sends back what it gets.
func echo(t *testing.T, ns *netnsexec.NetNS, addr string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
			}
		}()
		return nil
	}))
}

func dial(t *testing.T, ns *netnsexec.NetNS, addr string) (c net.Conn) {
	t.Helper()
	require.NoError(t, ns.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", addr, netnstest.Patience)
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answers reports whether a connection still reaches the echo.
func answers(t *testing.T, c net.Conn) bool {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(netnstest.Patience)))
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	b := make([]byte, 1)
	_, err := io.ReadFull(c, b)
	return err == nil && b[0] == 'x'
}

// TestOpenConnections: what becomes of the connections that are open when a pod joins and when it leaves; package machine says
// why.
func TestOpenConnections(t *testing.T) {
	t.Parallel()
	for name, tracked := range map[string]bool{"conntrack knows them": true, "conntrack does not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, ruleset.BackendNftables)
			uid := n.pod(1)
			w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})
			n.inWorld(uid, w)
			n.namespaces.mu.Lock()
			n.namespaces.paths[uid] = w.Pod.Path()
			n.namespaces.mu.Unlock()
			const out, app = "10.96.5.5:7777", "10.244.1.5:7777"
			echo(t, w.Out, out)
			echo(t, w.Pod, app)
			if tracked { // a rule that needs conntrack, as many networks have in pods
				other := redirect.Default()
				other.Inbound, other.Outbound, other.DropInvalid = redirect.Inbound{Ports: redirect.NoPorts()}, redirect.Outbound{CIDRs: redirect.NoPrefixes()}, true
				_, err := n.backendOf(w.Pod).Apply(t.Context(), other.MustRuleset())
				require.NoError(t, err)
			}
			n.start()
			n.eventually(uid, status.StateOutside, "not-enabled")
			outbound, inbound := dial(t, w.Pod, out), dial(t, w.Out, app)
			require.True(t, answers(t, outbound) && answers(t, inbound))
			n.pods.label("shop", "ambient")
			n.captured(uid)
			assert.True(t, answers(t, outbound), "outbound")
			assert.True(t, answers(t, inbound), "inbound")

			fresh := dial(t, w.Pod, out)
			reached, err := io.ReadAll(fresh)
			require.NoError(t, err)
			assert.Equal(t, "proxy [::]:15001", string(reached), "what is new is captured")
			require.NoError(t, fresh.Close()) // else the proxy may still have it, for which the pod keeps rules
			n.pods.label("shop", "")
			n.until("drained", func() bool { return !slices.Contains(n.namespaces.Known(), uid) })
			n.outside(uid)
			if tracked {
				assert.True(t, answers(t, outbound) && answers(t, inbound), "what was never captured survives")
			}
			assert.True(t, answers(t, dial(t, w.Pod, out)) && answers(t, dial(t, w.Out, app)), "what is new goes straight")
		})
	}
}
