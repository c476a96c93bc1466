package nodecontrol_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// migrateReq has connections move from a listener that closes to another of the port.
const migrateReq = "/proc/sys/net/ipv4/tcp_migrate_req"

// sysctl returns the value in a pod's namespace, and sets another unless that is empty.
func (n *node) sysctl(uid types.UID, set string) (value string) {
	n.t.Helper()
	require.NoError(n.t, n.netns[uid].Do(func() error {
		if set != "" {
			if err := os.WriteFile(migrateReq, []byte(set), 0); err != nil {
				return err
			}
		}
		text, err := os.ReadFile(migrateReq)
		value = string(text)
		return err
	}))
	return value[:1]
}

// leaves takes a pod out of the mesh.
func (n *node) leaves(uid types.UID) {
	n.t.Helper()
	n.pods.change(uid, func(p *corev1.Pod) { p.Labels = map[string]string{ambient.DataplaneMode: "none"} })
	n.outside(uid)
	n.until("its namespace is given up", func() bool {
		for _, known := range n.namespaces.Known() {
			if known == uid {
				return false
			}
		}
		return true
	})
}

// TestExchangeSysctl: a pod that joins has the sysctl by which an exchange of proxies resets no connection, and one that leaves has what
// it had, whatever happened to the agent meanwhile.
func TestExchangeSysctl(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	for name, meanwhile := range map[string]func(n *node, uid types.UID){
		"nothing happens":            func(*node, types.UID) {},
		"the agent is killed":        func(n *node, _ types.UID) { n.kill(); n.start() },
		"the agent is killed, twice": func(n *node, _ types.UID) { n.kill(); n.start(); n.kill(); n.start() },
		"somebody sets it back": func(n *node, uid types.UID) {
			n.sysctl(uid, "0")
			n.until("it is set again", func() bool { return n.sysctl(uid, "") == "1" })
		},
		"somebody sets it back, and the agent is killed": func(n *node, uid types.UID) {
			n.kill()
			n.sysctl(uid, "0")
			n.start()
			n.until("it is set again", func() bool { return n.sysctl(uid, "") == "1" })
		},
	} {
		for _, before := range []string{"0", "1"} {
			t.Run(name+", from "+before, func(t *testing.T) {
				t.Parallel()
				n := newNode(t, ruleset.BackendNftables)
				uid := n.pod(1)
				n.sysctl(uid, before)
				n.pods.label("shop", "ambient")
				n.start()
				n.captured(uid)
				assert.Equal(t, "1", n.sysctl(uid, ""))
				assert.Empty(t, n.state(uid).ExchangeResets)
				meanwhile(n, uid)
				n.captured(uid)
				n.leaves(uid)
				assert.Equal(t, before, n.sysctl(uid, ""))
			})
		}
	}
}

// refusing is a [nodecontrol.Probes] that takes no address.
type refusing struct {
	nodecontrol.Probes

	asked func()
}

func (r refusing) Put(types.UID, []netip.Addr) error { r.asked(); return errFault }

// TestExchangeSysctlIsGivenBack: also by a release, to nobody or to another agent, and by an ADD that failed.
func TestExchangeSysctlIsGivenBack(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"", "istio-cni"} {
		n, uid := oneCaptured(t)
		require.Equal(t, "1", n.sysctl(uid, ""))
		left, err := n.c.Release(t.Context(), to)
		require.NoError(t, err)
		require.Empty(t, left)
		n.until("given back", func() bool { return n.sysctl(uid, "") == "0" })
		n.c.Capture()
		n.captured(uid)
		assert.Equal(t, "1", n.sysctl(uid, ""))
	}

	n := newNode(t, ruleset.BackendNftables)
	n.pods.label("shop", "ambient")
	uid := n.pending(1)
	seen := ""
	n.options = func(o *nodecontrol.Options) {
		o.Probes = refusing{n.probes, func() { seen = n.sysctl(uid, "") }}
	}
	n.start()
	_, err := n.attach(n.attachment(uid, "c1"))
	require.ErrorIs(t, err, errFault)
	require.Equal(t, "1", seen)
	assert.Equal(t, "0", n.sysctl(uid, ""))
	assert.Empty(t, n.namespaces.Known())
}

// TestExchangeOnAnOldKernel: a kernel that lacks the sysctl, or refuses it, keeps no pod out, and the pod's state says what that costs.
func TestExchangeOnAnOldKernel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(dir string) error
		says string
	}{
		"lacks it":   {func(string) error { return nil }, "the kernel has no sysctl net.ipv4.tcp_migrate_req"},
		"refuses it": {func(dir string) error { return os.Mkdir(filepath.Join(dir, "tcp_migrate_req"), 0o700) }, "set sysctl net.ipv4.tcp_migrate_req: read "},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "proc/sys/net/ipv4")
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, c.make(dir))
		n := newNode(t, ruleset.BackendNftables)
		n.options = func(o *nodecontrol.Options) { o.Apply.Root = root }
		uid := n.pod(1)
		n.pods.label("shop", "ambient")
		n.start()
		n.captured(uid)
		says := n.state(uid).ExchangeResets
		assert.Contains(t, says, c.says, name)
		assert.Contains(t, says, "connections that the proxy has yet to accept are reset when another takes its place", name)
		assert.Equal(t, "0", n.sysctl(uid, ""))
		n.leaves(uid)
		assert.Empty(t, n.state(uid).ExchangeResets, name)
	}
	n, uid := oneCaptured(t)
	assert.Empty(t, n.state(uid).ExchangeResets)
	assert.Equal(t, status.StateCaptured, n.state(uid).State)
}

// TestExchangeMovesConnections: what the old proxy's listener has yet to accept in a captured pod goes to the new one's.
func TestExchangeMovesConnections(t *testing.T) {
	t.Parallel()
	const connections = 20
	n, uid := oneCaptured(t)
	listen := func() (l net.Listener) {
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }), err)
		}}
		require.NoError(t, n.netns[uid].Do(func() (err error) {
			l, err = config.Listen(t.Context(), "tcp", "127.0.0.1:15099")
			return err
		}))
		return l
	}
	before := listen()
	var clients []net.Conn
	require.NoError(t, n.netns[uid].Do(func() error {
		for range connections {
			c, err := net.Dial("tcp", before.Addr().String())
			if err != nil {
				return err
			}
			clients = append(clients, c)
		}
		return nil
	}))
	after := listen()
	defer func() { _ = after.Close() }()
	require.NoError(t, before.Close())
	go serve(after, "the new one")
	for _, c := range clients {
		answer, err := io.ReadAll(c)
		require.NoError(t, err)
		assert.Equal(t, "proxy the new one", string(answer))
		require.NoError(t, c.Close())
	}
}
