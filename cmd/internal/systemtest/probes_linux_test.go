package systemtest

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// hostSet is what is in the sets of the host's exemption of probes.
func (n *node) hostSet() string {
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput() //nolint:noctx // short
	require.NoError(n.t, err, "%s", out)
	return string(out)
}

// wire connects a namespace to the node, which is the router of 10.55.n.0/24 and fd00:55:n::/64.
func (n *node) wire(ns *netnsexec.NetNS, number int) {
	n.t.Helper()
	path := fmt.Sprintf("/proc/1/fd/%d", ns.Fd())
	run := func(netns, line string) {
		f := strings.Fields(line)
		out, err := proctest.Command(netns, f[0], f[1:]...).CombinedOutput()
		require.NoError(n.t, err, "%s: %s", line, out)
	}
	link := fmt.Sprintf("v%d", number)
	run("", "ip link add "+link+" type veth peer name eth0 netns "+path)
	n.t.Cleanup(func() { run("", "ip link del "+link) })
	for _, e := range [][3]string{{"", link, "1"}, {path, "eth0", "2"}} {
		run(e[0], fmt.Sprintf("ip addr add 10.55.%d.%s/24 dev %s", number, e[2], e[1]))
		run(e[0], fmt.Sprintf("ip addr add fd00:55:%d::%s/64 dev %s nodad", number, e[2], e[1]))
		run(e[0], "ip link set "+e[1]+" up")
	}
	run(path, fmt.Sprintf("ip route add default via 10.55.%d.1", number))
	run(path, fmt.Sprintf("ip route add default via fd00:55:%d::1", number))
	waittest.Addrs(n.t, ns)
}

// peerIn answers each connection in a namespace with the address that it came from.
func peerIn(t *testing.T, ns *netnsexec.NetNS, at string) {
	t.Helper()
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String())
			_ = c.Close()
		}
	}()
}

// TestProbes: the node's own connections to a captured pod have the address that its rules let pass; those that the node forwards
// have their own, and pass by the proxy.
func TestProbes(t *testing.T) {
	for i, backend := range withLegacy {
		t.Run(string(backend), func(t *testing.T) {
			n := newNode(t, backend)
			n.start()
			proxy := n.proxy(nodeproxytest.Faults{})
			inside, client := netnstest.New(t), netnstest.New(t)
			to, from := 2*i+1, 2*i+2
			n.wire(inside, to)
			n.wire(client, from)
			peerIn(t, inside, ":8081")
			ask := func(ns *netnsexec.NetNS, at string) (peer string) {
				t.Helper()
				dial := func() error {
					c, err := net.DialTimeout("tcp", at, patience)
					if err != nil {
						return err
					}
					defer func() { _ = c.Close() }()
					b, err := io.ReadAll(c)
					peer = string(b)
					return err
				}
				if ns == nil {
					require.NoError(t, dial())
				} else {
					require.NoError(t, ns.Do(dial))
				}
				return peer
			}
			v4, v6 := fmt.Sprintf("10.55.%d.", to), fmt.Sprintf("fd00:55:%d::", to)
			require.Equal(t, v4+"1", ask(nil, v4+"2:8081"), "outside of the mesh")
			p := n.pod("cart", inside, "ambient", v4+"2", v6+"2")
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8081)}}}
			p.create().add()
			n.becomes(p, status.StateCaptured)
			assert.Equal(t, "169.254.7.127", ask(nil, v4+"2:8081"))
			assert.Equal(t, "fd16:9254:7127:1337:ffff:ffff:ffff:ffff", ask(nil, "["+v6+"2]:8081"))
			has := proxy.State().Pods[p.UID]
			assert.Zero(t, has.Accepted[15006], "probes do not pass by the proxy")
			peerIn(t, inside, ":8082")
			assert.Equal(t, "169.254.7.127", ask(nil, v4+"2:8082"))
			assert.Equal(t, 1, proxy.State().Pods[p.UID].Accepted[15006], "of another pod's probe, that asks a port of this one")
			assert.Equal(t, fmt.Sprintf("10.55.%d.2", from), ask(client, v4+"2:8081"))
			assert.Equal(t, fmt.Sprintf("fd00:55:%d::2", from), ask(client, "["+v6+"2]:8081"))
			has = proxy.State().Pods[p.UID]
			assert.Equal(t, 3, has.Accepted[15006], "what is forwarded does")

			n.Remove(t, n.ns, p.Name)
			n.until("its exemption is gone", func() bool { return !strings.Contains(n.hostSet(), v4+"2") })
			q := n.pod("next", inside, "none", v4+"2", v6+"2").create() // which got the same address
			q.runs()
			n.becomes(q, status.StateOutside)
			assert.NotContains(t, n.hostSet(), v4+"2")
		})
	}
}
