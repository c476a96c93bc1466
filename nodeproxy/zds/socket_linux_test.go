package zds_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	path := filepath.Join(filepath.Dir(socketPath(t)), "deep", "er", "z.sock")
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
	path := socketPath(t)
	for _, left := range []string{path, path + ".new"} {
		stale := listenRaw(t, left)
		stale.SetUnlinkOnClose(false)
		require.NoError(t, stale.Close())
	}
	start(t, at(path)).connected(t)
}

// Another agent that runs keeps its connections, and new ones are ours. When it ends, ours stay.
func TestTakeOver(t *testing.T) {
	path := socketPath(t)
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

// An agent that removes the file by its name when it ends, as net does, leaves nobody without.
func TestSocketIsMadeAgain(t *testing.T) {
	path := socketPath(t)
	other := listenRaw(t, path)
	a := start(t, at(path))
	held := a.connected(t)
	require.NoError(t, other.Close()) // removes our file
	require.Eventually(t, func() bool {
		c, err := zds.Dial(t.Context(), path)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, patience, 10*time.Millisecond)
	removed := a.removing(t.Context(), "a")
	held.expect("Del a")
	held.ack(nil)
	require.NoError(t, await(t, removed))
}

// What is no socket is not ours to replace.
func TestFilesThatAreNoSocket(t *testing.T) {
	snapshot := func(context.Context) ([]nodeproxy.Workload, error) { return nil, nil }
	for name, put := range map[string]func(string) error{
		"file":      func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"directory": func(at string) error { return os.Mkdir(at, 0o700) },
		"link":      func(at string) error { return os.Symlink("elsewhere", at) },
	} {
		path := socketPath(t)
		require.NoError(t, put(path))
		_, err := zds.Listen(t.Context(), zds.Options{Path: path, Snapshot: snapshot})
		require.ErrorContains(t, err, "is no socket", name)
	}
	path := socketPath(t)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err := zds.Listen(t.Context(), zds.Options{Path: filepath.Join(path, "z.sock"), Snapshot: snapshot})
	require.ErrorIs(t, err, syscall.ENOTDIR)
	_, err = zds.Listen(t.Context(), zds.Options{Path: socketPath(t)})
	require.ErrorContains(t, err, "Snapshot")
	_, err = zds.Listen(t.Context(), zds.Options{Path: socketPath(t), Snapshot: snapshot, AckTimeout: -1})
	require.ErrorContains(t, err, "AckTimeout")
}
