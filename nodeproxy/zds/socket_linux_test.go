package zds_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

func at(path string) func(*zds.Options) { return func(o *zds.Options) { o.Path = path } }

func listenRaw(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestSocketFile(t *testing.T) {
	path := filepath.Join(filepath.Dir(socktest.Path(t)), "deep", "er", "z.sock")
	umask := syscall.Umask(0)
	defer syscall.Umask(umask)
	a := start(t, at(path))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o600, info.Mode())
	a.connected(t)
	a.stop()
	assert.NoFileExists(t, path)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// A socket of an agent that was killed is replaced, and so is what it left beside.
func TestStaleSocket(t *testing.T) {
	path := socktest.Path(t)
	for _, left := range []string{path, filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".zz")} {
		stale := listenRaw(t, left)
		stale.SetUnlinkOnClose(false)
		require.NoError(t, stale.Close())
	}
	start(t, at(path)).connected(t)
}

// Another agent that runs keeps its connections, and new ones are ours. When it ends, ours stay.
func TestTakeOver(t *testing.T) {
	path := socktest.Path(t)
	old := start(t, at(path))
	held := old.connected(t)
	a := start(t, at(path))
	a.connected(t)
	require.NoError(t, old.Ready())
	added := old.adding(t.Context(), pod(t, "a"))
	held.expect("Add a")
	held.ack(nil)
	require.NoError(t, await(t, added))
	old.stop()
	a.connected(t)
}

// An agent that was killed after it had replaced ours leaves nobody without.
func TestSocketIsTakenBack(t *testing.T) {
	path := socktest.Path(t)
	a := start(t, at(path))
	killed := listenRaw(t, path+".killed")
	killed.SetUnlinkOnClose(false)
	require.NoError(t, os.Rename(path+".killed", path))
	require.NoError(t, killed.Close())
	reachable(t, path)
	a.connected(t)
}

// reachable waits until an agent listens.
func reachable(t testing.TB, path string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := zds.Dial(t.Context(), path)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, patience, 10*time.Millisecond)
}

// An agent that removes the file by its name when it ends, as net does, leaves nobody without.
func TestSocketIsMadeAgain(t *testing.T) {
	path := socktest.Path(t)
	other := listenRaw(t, path)
	a := start(t, at(path))
	held := a.connected(t)
	require.NoError(t, other.Close()) // removes our file
	reachable(t, path)
	removed := a.removing(t.Context(), "a")
	held.expect("Del a")
	held.ack(nil)
	require.NoError(t, await(t, removed))
}

func TestListenRefuses(t *testing.T) {
	snapshot := func(context.Context) ([]nodeproxy.Workload, error) { return nil, nil }
	path := socktest.Path(t)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err := zds.Listen(t.Context(), zds.Options{Path: path, Snapshot: snapshot})
	require.ErrorContains(t, err, "is no socket")
	_, err = zds.Listen(t.Context(), zds.Options{Path: socktest.Path(t)})
	require.ErrorContains(t, err, "Snapshot")
	_, err = zds.Listen(t.Context(), zds.Options{Path: socktest.Path(t), Snapshot: snapshot, AckTimeout: -1})
	require.ErrorContains(t, err, "AckTimeout")
}

// A proxy whose connection ends connects again at once. It never meets the agent that ends: that has withdrawn its socket by then.
func TestEndsWithoutASocket(t *testing.T) {
	for range 20 {
		a := start(t, nil)
		var met atomic.Int32
		var all sync.WaitGroup
		for range 8 {
			c := a.connected(t)
			all.Go(func() {
				c.ended()
				if again, err := zds.Dial(t.Context(), a.path); err == nil {
					met.Add(1)
					_ = again.Close()
				}
			})
		}
		a.stop()
		all.Wait()
		require.Zero(t, met.Load())
	}
}
