package systemtest

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// newWorld is a world whose pod has no proxy of its own.
func newWorld(t testing.TB) *netnstest.World {
	t.Helper()
	return netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})
}

var worldAddrs = []string{"10.244.1.5", "fd00:10:244::5"}

// fate is where one probe ends.
func fate(t testing.TB, w *netnstest.World, probe string) string {
	t.Helper()
	p, err := netnstest.ParseProbe(probe)
	require.NoError(t, err)
	return w.Run([]netnstest.Probe{p})[probe]
}

// TestPackets: a pod that starts is in the care of the proxy, which has its namespace and no other: what it sends, what it is
// sent, and the tunnel.
func TestPackets(t *testing.T) {
	for _, backend := range withLegacy {
		for _, bypass := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bypass %t", backend, bypass), func(t *testing.T) {
				n := newNode(t, backend)
				n.start()
				proxy := n.proxy(nodeproxytest.Faults{})
				w := newWorld(t)
				p := n.pod("cart", w.Pod, "ambient", worldAddrs...)
				if bypass {
					p.Annotations["ambient.istio.io/bypass-inbound-capture"] = "true"
				}
				before := n.rules(w.Pod)
				p.create().add()
				has, ok := proxy.State().Pods[p.UID]
				require.True(t, ok)
				assert.Equal(t, w.Pod.ID(), has.NetNS)
				assert.Equal(t, []string{n.ns, "cart", "cart"}, []string{has.Namespace, has.Name, has.ServiceAccount})
				assert.Equal(t, "out:80 orig=10.96.5.5:80", fate(t, w, "pod tcp 1000/1000 -> 10.96.5.5:80"))
				assert.Equal(t, "out:443 orig=[2001:db8::10]:443", fate(t, w, "pod tcp 1000/1000 -> [2001:db8::10]:443"))
				assert.Equal(t, "app:8080 orig=10.244.1.5:8080", fate(t, w, "out tcp 0/0 -> 10.244.1.5:8080"))
				assert.Equal(t, "app:8080 orig=[fd00:10:244::5]:8080", fate(t, w, "out tcp 0/0 -> [fd00:10:244::5]:8080"))
				connect(t, w.Out, "10.244.1.5:15008")
				n.until("the tunnel is open", func() bool {
					has := proxy.State().Pods[p.UID]
					return has.Accepted[15008] > 0
				})
				has = proxy.State().Pods[p.UID]
				want := map[uint16]int{15001: 2, 15006: 2, 15008: 1}
				if bypass {
					delete(want, 15006)
				}
				assert.Equal(t, want, has.Accepted)
				n.becomes(p, status.StateCaptured)
				assert.Zero(t, p.attachment().Run(t, "CHECK").Exit)

				n.label("/api/v1/namespaces/"+n.ns+"/pods/cart", map[string]any{ambient.DataplaneMode: "none"})
				n.leaves(p, before)
				assert.Equal(t, "out:80 orig=10.96.5.5:80", fate(t, w, "pod tcp 1000/1000 -> 10.96.5.5:80"))
			})
		}
	}
}

// connect opens a connection, and closes it.
func connect(t testing.TB, ns *netnsexec.NetNS, to string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		conn, err := net.DialTimeout("tcp", to, patience)
		if err != nil {
			return err
		}
		return conn.Close()
	}))
}
