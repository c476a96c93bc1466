package nodeproxytest_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// bare is the agent's end of a connection, on which the test says what it likes.
type bare struct {
	*net.UnixConn
	t testing.TB
}

// meet starts a proxy with an agent of that kind.
func meet(t testing.TB) (*nodeproxytest.Proxy, *bare, *net.UnixListener) {
	t.Helper()
	path := socktest.Path(t)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := start(t, nodeproxytest.Options{Socket: path})
	return p, welcome(t, l), l
}

func welcome(t testing.TB, l *net.UnixListener) *bare {
	t.Helper()
	conn, err := l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	hello := make([]byte, 100)
	n, err := conn.Read(hello)
	require.NoError(t, err)
	require.Equal(t, []byte{8, 1}, hello[:n], "version 1")
	return &bare{conn, t}
}

// ask sends a packet, with files, and returns the reason of the answer.
func (b *bare) ask(packet []byte, files ...syscall.Conn) string {
	b.t.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.(*os.File).Fd()))
	}
	var rights []byte
	if fds != nil {
		rights = syscall.UnixRights(fds...)
	}
	_, _, err := b.WriteMsgUnix(packet, rights, nil)
	require.NoError(b.t, err)
	answer := make([]byte, 2048)
	n, err := b.Read(answer)
	require.NoError(b.t, err)
	ack, found := bytes.CutPrefix(answer[:n], []byte{0x0a})
	require.True(b.t, found, "an ack")
	ack, size := protowire.ConsumeBytes(ack)
	require.Equal(b.t, n-1, size)
	if len(ack) == 0 {
		return ""
	}
	reason, size := protowire.ConsumeBytes(ack[1:])
	require.Equal(b.t, len(ack)-1, size)
	return string(reason)
}

// text is a field with a text, or a message.
func text(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// packet is a request that names a pod: Del by the second field of its message, others by the first.
func packet(kind zds.Kind, uid string) []byte {
	at := protowire.Number(1)
	if kind == zds.Del {
		at = 2
	}
	return text(protowire.Number(kind), string(text(at, uid)))
}

func add(uid string) []byte {
	info := text(2, string(text(1, uid)))
	return text(protowire.Number(zds.Add), string(text(1, uid))+string(info))
}

var (
	sent   = []byte{0x1a, 0x00}
	noInfo = protowire.AppendBytes(nil, []byte("\x0a\x05uid-a"))
)

// What ztunnel does not survive, the double does not either.
func TestExits(t *testing.T) {
	keep := packet(zds.Keep, "a")
	for name, last := range map[string][]byte{
		"a second SnapshotSent": sent, "Keep after it": keep, "Add without an identity": append([]byte{0x0a}, noInfo...),
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			p, agent, _ := meet(t)
			require.Empty(t, agent.ask(keep))
			require.Empty(t, agent.ask(sent))
			cart := workload(t, "cart", ns)
			require.Empty(t, agent.ask(add("cart"), cart.NetNS))
			if last[0] == 0x0a {
				require.NotEmpty(t, agent.ask(last, cart.NetNS))
			} else {
				require.NotEmpty(t, agent.ask(last))
			}
			require.Equal(t, 1, p.ExitCode())
			assert.Empty(t, p.State().Pods)
		})
	}
}

// What it only disconnects for costs no pod.
func TestDisconnects(t *testing.T) {
	ns := netnstest.New(t)
	p, agent, l := meet(t)
	cart := workload(t, "cart", ns)
	require.Empty(t, agent.ask(add("cart"), cart.NetNS))
	require.Empty(t, agent.ask(sent))
	for _, ask := range []func() string{
		func() string { return agent.ask(add("b")) },
		func() string { return agent.ask(add("b"), cart.NetNS, cart.NetNS) },
		func() string { return agent.ask(sent, cart.NetNS) },
		func() string { return agent.ask([]byte{0x50, 0x01}) },
		func() string { return agent.ask(make([]byte, 2000)) },
	} {
		require.NotEmpty(t, ask())
		agent = welcome(t, l)
		assert.Equal(t, []string{"cart"}, uids(p.State()))
		require.Empty(t, agent.ask(packet(zds.Keep, "cart")))
		require.Empty(t, agent.ask(sent))
	}
}

// The same namespace is no news, another one is a new pod.
func TestInode(t *testing.T) {
	one, other := netnstest.New(t), netnstest.New(t)
	p, agent, _ := meet(t)
	require.Empty(t, agent.ask(sent))
	require.Empty(t, agent.ask(add("a"), workload(t, "a", one).NetNS))
	held := dial(t, one, "127.0.0.1:15053")
	eventually(t, "the connection is there", func() bool { pod := p.State().Pods["a"]; return pod.Open == 1 })
	require.Empty(t, agent.ask(add("a"), workload(t, "a", one).NetNS))
	pod := p.State().Pods["a"]
	assert.Equal(t, 1, pod.Open)
	require.Empty(t, agent.ask(add("a"), workload(t, "a", other).NetNS))
	pod = p.State().Pods["a"]
	assert.Equal(t, other.ID(), pod.NetNS)
	_, err := held.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET, "the old one is cut at once")
	require.Error(t, one.Do(func() error { _, err := net.Dial("tcp", "127.0.0.1:15053"); return err }))
	_ = dial(t, other, "127.0.0.1:15053").Close()
	require.NotEmpty(t, agent.ask(add("b"), workload(t, "b", host(t)).NetNS), "no namespace of a pod")
}

// A pod that is taken back gets no new connections, and those that are open are closed at once.
func TestDel(t *testing.T) {
	ns := netnstest.New(t)
	p, agent, _ := meet(t)
	require.Empty(t, agent.ask(add("a"), workload(t, "a", ns).NetNS))
	require.Empty(t, agent.ask(packet(zds.Del, "a")))
	held := dial(t, ns, "127.0.0.1:15053") // until the snapshot is complete
	eventually(t, "the connection is there", func() bool { pod := p.State().Pods["a"]; return pod.Open == 1 })
	assert.False(t, p.State().Ready)
	require.Empty(t, agent.ask(sent))
	assert.True(t, p.State().Ready)
	assert.Empty(t, p.State().Pods)
	require.Error(t, ns.Do(func() error { _, err := net.Dial("tcp", "127.0.0.1:15053"); return err }))
	_, err := held.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is closed, though neither end has ended it")
	require.Empty(t, agent.ask(packet(zds.Del, "a")), "no such pod, no error")

	require.Empty(t, agent.ask(add("a"), workload(t, "a", ns).NetNS))
	held = dial(t, ns, "127.0.0.1:15053")
	eventually(t, "the connection is there", func() bool { pod := p.State().Pods["a"]; return pod.Open == 1 })
	require.Empty(t, agent.ask(packet(zds.Del, "a")))
	_, err = held.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the same after the snapshot")
}

// What cannot listen is refused, makes the proxy not ready, and is tried again.
func TestPending(t *testing.T) {
	ns := netnstest.New(t)
	var taken net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		taken, err = net.Listen("tcp", "[::]:15006")
		return err
	}))
	path := socktest.Path(t)
	a := newAgent(t, path, patience)
	a.hold(workload(t, "a", ns))
	p := start(t, nodeproxytest.Options{Socket: path, Retry: 10e6})
	a.ready(t, 1)
	require.EqualValues(t, "a", <-a.refused)
	s := p.State()
	assert.False(t, s.Ready)
	assert.Contains(t, s.Pods["a"].Pending, "address already in use")
	require.Error(t, ns.Do(func() error { _, err := net.Dial("tcp", "127.0.0.1:15001"); return err }), "all or nothing")
	require.NoError(t, taken.Close())
	eventually(t, "the pod is served", func() bool { return p.State().Ready })
	_ = dial(t, ns, "127.0.0.1:15006").Close()
}

// host is a file of the host's own namespace, with a path.
func host(t testing.TB) interface{ Path() string } {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.Symlink("/proc/self/ns/net", path))
	return pathed(path)
}

type pathed string

func (p pathed) Path() string { return string(p) }
