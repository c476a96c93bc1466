package systemtest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// raw is a proxy by hand: a socket and bytes.
type raw struct {
	t  *testing.T
	fd int
}

func (n *node) raw(t *testing.T) *raw {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: n.in("z.sock")}))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	r := &raw{t, fd}
	r.send(0x08, 0x01)
	return r
}

func (r *raw) send(b ...byte) {
	r.t.Helper()
	require.NoError(r.t, unix.Sendmsg(r.fd, b, nil, nil, unix.MSG_NOSIGNAL))
}

func (r *raw) ack() { r.t.Helper(); r.send(0x0a, 0x00) }

// next receives a packet and the namespace that came with it, if any. An empty packet is the end.
func (r *raw) next() ([]byte, *netnsexec.NetNS) {
	r.t.Helper()
	b, oob := make([]byte, 1024), make([]byte, 256)
	size, oobSize, flags, _, err := unix.Recvmsg(r.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	require.NoError(r.t, err)
	require.Zero(r.t, flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC))
	if oobSize == 0 {
		return b[:size], nil
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobSize])
	require.NoError(r.t, err)
	require.Len(r.t, messages, 1)
	fds, err := unix.ParseUnixRights(&messages[0])
	require.NoError(r.t, err)
	require.Len(r.t, fds, 1)
	file := os.NewFile(uintptr(fds[0]), "namespace")
	defer func() { _ = file.Close() }()
	ns, err := netnsexec.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = ns.Close() })
	return b[:size], ns
}

// field is a field of bytes in protobuf, of a length below 128.
func field(number byte, value string) string {
	return string([]byte{number<<3 | 2, byte(len(value))}) + value
}

// addOf is the packet that hands a pod over.
func addOf(p *pod) []byte {
	return []byte(field(1, field(1, string(p.UID))+field(2, field(1, p.Name)+field(2, p.Namespace)+field(3, "cart"))))
}

// listenIn opens what a proxy opens in a pod.
func listenIn(t *testing.T, ns *netnsexec.NetNS) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		for _, at := range []string{"[::]:15001", "[::]:15006", "[::]:15008", "127.0.0.1:15053", "[::1]:15053"} {
			l, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = l.Close() })
		}
		for _, at := range []string{"127.0.0.1:15053", "[::1]:15053"} {
			l, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = l.Close() })
		}
		return nil
	}))
}

func (p *pod) adding() <-chan binarytest.Outcome {
	done, a := make(chan binarytest.Outcome, 1), p.attachment()
	go func() { done <- a.Run(p.n.t, "ADD") }()
	return done
}

// TestWire: the bytes are those of the protocol, and nothing but an ack and listeners lets a pod start.
func TestWire(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	r := n.raw(t)
	b, ns := r.next()
	assert.Equal(t, []byte{0x1a, 0x00}, b, "SnapshotSent")
	assert.Nil(t, ns)
	r.ack()
	w := newWorld(t)
	p := n.pod("cart", w.Pod, "ambient", worldAddrs...).create()

	done := p.adding()
	b, ns = r.next()
	assert.Equal(t, addOf(p), b)
	require.NotNil(t, ns)
	assert.Equal(t, w.Pod.ID(), ns.ID())
	assert.Empty(t, done, "before the ack")
	listenIn(t, ns)
	assert.Empty(t, done, "before the ack")
	r.ack()
	out := <-done
	require.Zero(t, out.Exit, "%s", out.Stdout)
	n.becomes(p, status.StateCaptured)
	n.Remove(t, n.ns, p.Name)
	b, ns = r.next()
	assert.Equal(t, []byte(field(2, field(2, string(p.UID)))), b, "Del")
	assert.Nil(t, ns)
	r.ack()
}

// TestLateAck: an ack that comes too late answers nothing, least of all the next request.
func TestLateAck(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	r := n.raw(t)
	_, _ = r.next()
	r.ack()
	p := n.pod("first", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create()
	q := n.pod("second", small(t, "10.244.1.6"), "ambient", "10.244.1.6").create()
	done := p.adding()
	b, ns := r.next()
	require.Equal(t, addOf(p), b)
	listenIn(t, ns)
	out := <-done
	require.NotZero(t, out.Exit, "no ack")
	late := unix.Sendmsg(r.fd, []byte{0x0a, 0x00}, nil, nil, unix.MSG_NOSIGNAL)
	require.ErrorIs(t, late, unix.EPIPE, "the connection is closed")

	next := n.raw(t)
	var told [][]byte
	for b, _ = next.next(); !slices.Equal(b, []byte{0x1a, 0x00}); b, _ = next.next() {
		told = append(told, b)
		next.ack()
	}
	next.ack()
	done = q.adding()
	for b, ns = next.next(); !slices.Equal(b, addOf(q)); b, ns = next.next() {
		next.ack() // the first pod is tried again, or taken back
	}
	listenIn(t, ns)
	assert.Empty(t, done, "its own ack has not been sent")
	next.ack()
	require.Eventually(t, func() bool { return len(done) > 0 }, patience, time.Millisecond, "%q", told)
	out = <-done
	require.Zero(t, out.Exit, "%s", out.Stdout)
}
