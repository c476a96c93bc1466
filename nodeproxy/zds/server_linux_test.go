package zds_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

func inode(t testing.TB, stat func() (os.FileInfo, error)) os.FileInfo {
	t.Helper()
	info, err := stat()
	require.NoError(t, err)
	return info
}

// The bytes on the socket are the protocol's, both ways, and the file that comes along is the pod's.
func TestWire(t *testing.T) {
	a := start(t, nil)
	conn, err := net.Dial("unixpacket", a.path)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	say := func(bytes string) {
		_, err := conn.Write(unhex(t, bytes))
		require.NoError(t, err)
	}
	hear := func(bytes string) {
		t.Helper()
		buf := make([]byte, 2048)
		n, err := conn.Read(buf)
		require.NoError(t, err)
		require.Equal(t, unhex(t, bytes), buf[:n])
	}
	require.ErrorIs(t, a.Ready(), nodeproxy.ErrNoProxy)
	say("08 01")
	hear("1a 00")
	require.Error(t, a.Ready())
	say("0a 00")
	a.settled(t)

	added := a.adding(t.Context(), pod(t, "uid-a"))
	hear("0a 1a" + "0a 05 75 69 64 2d 61" + "12 11" + "0a 05 75 69 64 2d 61" + "12 04 73 68 6f 70" + "1a 02 73 61")
	say("0a 00")
	require.NoError(t, await(t, added))
	removed := a.removing(t.Context(), "uid-a")
	hear("12 07 12 05 75 69 64 2d 61")
	say("0a 00")
	require.NoError(t, await(t, removed))
}

func TestAddBringsTheNamespace(t *testing.T) {
	a := start(t, nil)
	c := a.connected(t)
	w := pod(t, "a")
	added := a.adding(t.Context(), w)
	file := c.expect("Add a")
	assert.True(t, os.SameFile(inode(t, w.NetNS.(*os.File).Stat), inode(t, file.Stat)))
	c.ack(nil)
	require.NoError(t, await(t, added))
	assert.Equal(t, 1, a.Proxies()[0].Pods)
	assert.Equal(t, os.Getpid(), a.Proxies()[0].PID)
}

func TestAddFails(t *testing.T) {
	t.Run("without a proxy", func(t *testing.T) {
		require.ErrorIs(t, start(t, nil).Add(t.Context(), pod(t, "a")), nodeproxy.ErrNoProxy)
	})
	t.Run("without a namespace", func(t *testing.T) {
		a := start(t, nil)
		c := a.connected(t)
		require.ErrorContains(t, a.Add(t.Context(), kept(pod(t, "a"))), "no network namespace")
		w := pod(t, "a")
		require.NoError(t, w.NetNS.(*os.File).Close())
		require.ErrorIs(t, a.Add(t.Context(), w), os.ErrClosed)
		added := a.adding(t.Context(), pod(t, "b"))
		c.expect("Add b") // the connection is none the worse
		c.ack(nil)
		require.NoError(t, await(t, added))
	})
	t.Run("with names that do not fit", func(t *testing.T) {
		a := start(t, nil)
		a.connected(t)
		w := pod(t, "a")
		w.ServiceAccount = strings.Repeat("x", 1024)
		require.ErrorIs(t, a.Add(t.Context(), w), zds.ErrTooLong)
	})
	t.Run("refused", func(t *testing.T) {
		a := start(t, nil)
		c := a.connected(t)
		added := a.adding(t.Context(), pod(t, "a"))
		c.expect("Add a")
		c.ack(errors.New("address in use"))
		var nack *zds.NackError
		require.ErrorAs(t, await(t, added), &nack)
		assert.Equal(t, zds.NackError{Kind: zds.Add, UID: "a", Reason: "address in use"}, *nack)
		c.expect("Del a") // a proxy tries again by itself, and nobody wants the pod there any more
		c.ack(nil)
	})
	t.Run("and the proxy goes", func(t *testing.T) {
		a := start(t, nil)
		c := a.connected(t)
		added := a.adding(t.Context(), pod(t, "a"))
		c.expect("Add a")
		require.NoError(t, c.Close())
		require.ErrorIs(t, await(t, added), nodeproxy.ErrNoProxy)
	})
}

// A proxy that had the pod keeps it, whatever comes of handing it over again.
func TestRefusedAgain(t *testing.T) {
	a := start(t, nil)
	c := a.connected(t)
	w := pod(t, "a")
	added := a.adding(t.Context(), w)
	c.expect("Add a")
	c.ack(nil)
	require.NoError(t, await(t, added))
	added = a.adding(t.Context(), w)
	c.expect("Add a")
	c.ack(errors.New("no"))
	require.Error(t, await(t, added))
	removed := a.removing(t.Context(), "b")
	c.expect("Del b")
	c.ack(nil)
	require.NoError(t, await(t, removed))
}

// An ack that comes too late answers nothing: the connection is closed.
func TestLateAck(t *testing.T) {
	a := start(t, func(o *zds.Options) { o.AckTimeout = 50 * time.Millisecond })
	c := a.connected(t)
	added := a.adding(t.Context(), pod(t, "a"))
	c.expect("Add a")
	require.ErrorIs(t, await(t, added), zds.ErrTimeout)
	_ = c.Ack(nil)
	c.ended()
	require.ErrorIs(t, a.Add(t.Context(), pod(t, "b")), nodeproxy.ErrNoProxy)
}

// What no request asked for closes the connection, whether it comes before a request or between two.
func TestUnsolicited(t *testing.T) {
	for name, packet := range map[string]string{
		"an ack": "0a 00", "a hello": "08 01", "nonsense": "ff", "too long": strings.Repeat("00", 2000),
	} {
		t.Run("before, "+name, func(t *testing.T) {
			a := start(t, nil)
			said := make(chan struct{})
			a.snapshots(func(context.Context) ([]nodeproxy.Workload, error) {
				<-said
				return nil, nil
			})
			conn := a.raw(t, "08 01", packet)
			close(said)
			ends(t, conn)
			require.Eventually(t, func() bool { return errors.Is(a.Ready(), nodeproxy.ErrNoProxy) }, patience, time.Millisecond)
		})
		t.Run("between, "+name, func(t *testing.T) {
			a := start(t, nil)
			conn := a.raw(t, "08 01")
			_, err := conn.Read(make([]byte, 100))
			require.NoError(t, err)
			_, err = conn.Write(unhex(t, "0a 00"))
			require.NoError(t, err)
			a.settled(t)
			_, err = conn.Write(unhex(t, packet))
			require.NoError(t, err)
			ends(t, conn)
			require.Eventually(t, func() bool { return errors.Is(a.Ready(), nodeproxy.ErrNoProxy) }, patience, time.Millisecond)
		})
	}
}

// raw connects and sends packets.
func (a *agent) raw(t testing.TB, packets ...string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unixpacket", a.path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	for _, packet := range packets {
		_, err := conn.Write(unhex(t, packet))
		require.NoError(t, err)
	}
	return conn
}

// ends reads until the agent has closed the connection.
func ends(t testing.TB, conn net.Conn) {
	t.Helper()
	err := conn.SetReadDeadline(time.Now().Add(patience))
	for err == nil {
		_, err = conn.Read(make([]byte, 2048))
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// Two acks for one request: the second never counts for the next.
func TestTwoAcks(t *testing.T) {
	for range 50 {
		a := start(t, nil)
		c := a.connected(t)
		first := a.adding(t.Context(), pod(t, "a"))
		c.expect("Add a")
		c.ack(nil)
		c.ack(nil)
		require.NoError(t, await(t, first))
		require.Error(t, a.Add(t.Context(), pod(t, "b")))
		a.stop()
	}
}

func TestMalformedAck(t *testing.T) {
	for name, packet := range map[string]string{"no ack": "10 05", "nonsense": "ff", "cut": "0a 04 0a 02 6e", "too long": "0a" + strings.Repeat("00", 1024)} {
		t.Run(name, func(t *testing.T) {
			a := start(t, nil)
			conn := a.raw(t, "08 01")
			_, err := conn.Read(make([]byte, 100))
			require.NoError(t, err)
			_, err = conn.Write(unhex(t, packet))
			require.NoError(t, err)
			ends(t, conn)
		})
	}
}

func TestPeers(t *testing.T) {
	a := start(t, func(o *zds.Options) { o.UIDs = []uint32{uint32(os.Getuid()) + 1} })
	conn, err := net.Dial("unixpacket", a.path)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write(zds.MarshalHello()) // unless it is closed already
	ends(t, conn)
	assert.Empty(t, a.Proxies())
	require.ErrorIs(t, a.Ready(), nodeproxy.ErrNoProxy)
}

// TestHello: a connection that says no hello, or another, is ended: the first when its time is over, the others at once.
func TestHello(t *testing.T) {
	for name, hello := range map[string]string{"none": "", "of tomorrow": "08 02", "nonsense": "ff", "an ack": "0a 00"} {
		t.Run(name, func(t *testing.T) {
			patient := map[bool]time.Duration{true: 50 * time.Millisecond, false: time.Hour}[hello == ""]
			a := start(t, func(o *zds.Options) { o.AckTimeout = patient })
			conn, err := net.Dial("unixpacket", a.path)
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			if hello != "" {
				_, err = conn.Write(unhex(t, hello))
				require.NoError(t, err)
			}
			ends(t, conn)
			assert.Empty(t, a.Proxies())
		})
	}
}

// New pods go to the proxy that came last, removals to all. When it goes, the one before has its place, and what it lacks.
func TestTwoProxies(t *testing.T) {
	a := start(t, nil)
	pa, pb, pc := pod(t, "a"), pod(t, "b"), pod(t, "c")
	a.holding(pa)
	old, newer := a.connected(t, "a"), a.connected(t, "a")

	a.holding(pa, pb)
	added := a.adding(t.Context(), pb)
	newer.expect("Add b")
	newer.ack(nil)
	require.NoError(t, await(t, added))
	removed := a.removing(t.Context(), "x")
	for _, c := range []*client{old, newer} {
		c.expect("Del x")
		c.ack(nil)
	}
	require.NoError(t, await(t, removed))

	a.holding(pa, pb, pc)
	added = a.adding(t.Context(), pc)
	newer.expect("Add c")
	require.NoError(t, newer.Close())
	got, end := map[string]bool{}, make(chan struct{})
	go func() { // c is asked again, b is inherited, and c perhaps as well
		defer close(end)
		for {
			r, file, err := old.Receive()
			if err != nil {
				return
			}
			got[r.String()] = true
			_ = file.Close()
			_ = old.Ack(nil)
		}
	}()
	require.NoError(t, await(t, added))
	a.settled(t)
	assert.Len(t, a.Proxies(), 1)
	require.Eventually(t, func() bool { return a.Proxies()[0].Pods == 3 }, patience, time.Millisecond)
	a.stop()
	await(t, end)
	assert.Equal(t, map[string]bool{"Add b": true, "Add c": true}, got)
}

// A proxy that went is no reason why a pod cannot be taken back.
func TestRemove(t *testing.T) {
	a := start(t, nil)
	require.NoError(t, a.Remove(t.Context(), "a"))
	require.Error(t, a.Remove(t.Context(), ""))
	c := a.connected(t)
	removed := a.removing(t.Context(), "a")
	c.expect("Del a")
	c.ack(errors.New("never heard of it"))
	require.NoError(t, await(t, removed))
	removed = a.removing(t.Context(), "a")
	c.expect("Del a")
	require.NoError(t, c.Close())
	require.NoError(t, await(t, removed))
}

// Whoever stops waiting takes an Add along that is not sent; of one that is sent the proxy is told the end.
func TestContext(t *testing.T) {
	a := start(t, nil)
	c := a.connected(t)
	removed := a.removing(t.Context(), "x")
	c.expect("Del x")
	waiting, cancel := context.WithCancel(t.Context())
	added := a.adding(waiting, pod(t, "a"))
	require.Eventually(t, func() bool { return a.Proxies()[0].Waiting == 1 }, patience, time.Millisecond)
	cancel()
	require.ErrorIs(t, await(t, added), context.Canceled)
	c.ack(nil)
	require.NoError(t, await(t, removed))

	sent, cancel := context.WithCancel(t.Context())
	added = a.adding(sent, pod(t, "b"))
	c.expect("Add b")
	cancel()
	require.ErrorIs(t, await(t, added), context.Canceled)
	c.ack(nil)
	c.expect("Del b")
	c.ack(nil)

	gone, cancel := context.WithCancel(t.Context())
	removed = a.removing(gone, "c")
	c.expect("Del c")
	also := a.removing(gone, "d")
	require.Eventually(t, func() bool { return a.Proxies()[0].Waiting == 1 }, patience, time.Millisecond)
	cancel()
	require.ErrorIs(t, await(t, removed), context.Canceled)
	require.ErrorIs(t, await(t, also), context.Canceled)
	c.ack(nil)
	c.expect("Del d") // told nevertheless
	c.ack(nil)
}

// The snapshot's pods that a proxy refuses are told, and the connection goes on.
func TestSnapshotRefused(t *testing.T) {
	a := start(t, nil)
	closed, long := pod(t, "closed"), pod(t, "long")
	require.NoError(t, closed.NetNS.(*os.File).Close())
	long.ServiceAccount = strings.Repeat("x", 1024)
	a.holding(pod(t, "a"), long, kept(pod(t, "b")), closed, pod(t, "c"))
	c := a.connect(t)
	c.expect("Add a")
	c.ack(errors.New("not yet"))
	c.expect("Keep b")
	c.ack(nil)
	c.expect("Keep closed") // it stays, if it is there
	c.ack(nil)
	c.expect("Add c")
	c.ack(nil)
	c.expect("SnapshotSent")
	c.ack(nil)
	a.settled(t)
	for _, want := range []types.UID{"long", "a", "closed"} {
		assert.Equal(t, want, await(t, a.refused))
	}
	assert.Equal(t, 3, a.Proxies()[0].Pods, "b and closed are kept, c is added")
}

// A snapshot that cannot be taken yet ends the connection, and tells the proxy nothing.
func TestSnapshotFails(t *testing.T) {
	a := start(t, nil)
	a.snapshots(func(context.Context) ([]nodeproxy.Workload, error) { return nil, errors.New("not synced") })
	a.connect(t).ended()
	a.snapshots(func(ctx context.Context) ([]nodeproxy.Workload, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	c := a.connect(t)
	require.NoError(t, c.Close()) // also while it is taken
	require.Eventually(t, func() bool { return len(a.Proxies()) == 0 }, patience, time.Millisecond)
}
