package sockfile_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/files/sockfile"
	"github.com/meshcni/meshcni/internal/testing/socktest"
)

var networks = []string{"unix", "unixpacket"}

func listen(t *testing.T, network, path string) *sockfile.Listener {
	t.Helper()
	l, err := sockfile.Listen(t.Context(), network, path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func files(t *testing.T, path string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	for _, f := range all {
		names = append(names, f.Name())
	}
	return names
}

// The path is the last one's. Who ends leaves another's file alone, and is not disturbed by the question who has it.
func TestOwner(t *testing.T) {
	for _, network := range networks {
		path := filepath.Join(filepath.Dir(socktest.Path(t)), "deep", "a.sock")
		first := listen(t, network, path)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		assert.Equal(t, os.ModeSocket|0o600, info.Mode())
		assert.Equal(t, sockfile.Ours, first.Owner())
		second := listen(t, network, path)
		assert.Equal(t, sockfile.Another, first.Owner())
		require.NoError(t, first.Withdraw())
		conn, err := net.Dial(network, path)
		require.NoError(t, err)
		met, err := second.AcceptUnix()
		require.NoError(t, err)
		peer, err := sockfile.Peer(met)
		require.NoError(t, err)
		assert.Equal(t, os.Getpid(), int(peer.Pid))
		assert.Equal(t, os.Geteuid(), int(peer.Uid))
		one := make([]byte, 1)
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
		_, err = met.Read(one)
		require.NoError(t, err)
		assert.Equal(t, "x", string(one), "the first that connects is the first that is accepted")
		_, _ = conn.Close(), met.Close()

		require.NoError(t, second.Close()) // as if it had been killed
		assert.Equal(t, sockfile.Nobody, first.Owner())
		third := listen(t, network, path)
		assert.Equal(t, []string{"a.sock"}, files(t, path))
		require.NoError(t, third.Withdraw())
		assert.Equal(t, sockfile.Nobody, third.Owner())
		assert.Empty(t, files(t, path))
	}
}

// Servers that start at the same moment do not take each other's unfinished sockets: each succeeds, and one has the path.
func TestAtOnce(t *testing.T) {
	for _, network := range networks {
		path := filepath.Join(filepath.Dir(socktest.Path(t)), "deep", "a.sock")
		all := make([]*sockfile.Listener, 32)
		var started sync.WaitGroup
		for i := range all {
			started.Go(func() {
				var err error
				all[i], err = sockfile.Listen(t.Context(), network, path)
				assert.NoError(t, err)
			})
		}
		started.Wait()
		ours := 0
		for _, l := range all {
			if l.Owner() == sockfile.Ours {
				ours++
			}
		}
		assert.Equal(t, 1, ours)
		assert.Equal(t, []string{"a.sock"}, files(t, path))
		for _, l := range all {
			require.NoError(t, l.Withdraw())
		}
		assert.Empty(t, files(t, path))
	}
}

// What somebody who was killed left half-way goes; what is no socket is not ours to replace.
func TestWhatIsThere(t *testing.T) {
	path := filepath.Join(filepath.Dir(socktest.Path(t)), "deep", "a.sock")
	l := listen(t, "unix", path)
	require.NoError(t, os.Rename(path, filepath.Join(filepath.Dir(path), ".a.sock.zz")))
	require.NoError(t, l.Close())
	assert.Equal(t, sockfile.Nobody, l.Owner())
	listen(t, "unix", path)
	assert.Equal(t, []string{"a.sock"}, files(t, path))

	for name, put := range map[string]func(string) error{
		"file":      func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"directory": func(at string) error { return os.Mkdir(at, 0o700) },
		"link":      func(at string) error { return os.Symlink("elsewhere", at) },
	} {
		path := filepath.Join(filepath.Dir(socktest.Path(t)), "deep", "a.sock")
		l := listen(t, "unix", path)
		require.NoError(t, os.Remove(path))
		require.NoError(t, put(path))
		assert.Equal(t, sockfile.Another, l.Owner(), name)
		_, err := sockfile.Listen(t.Context(), "unix", path)
		require.ErrorContains(t, err, "is no socket", name)
	}
	file := filepath.Join(filepath.Dir(socktest.Path(t)), "deep", "a.sock")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := sockfile.Listen(t.Context(), "unix", filepath.Join(file, "a.sock"))
	require.ErrorIs(t, err, syscall.ENOTDIR)
	_, err = sockfile.Listen(t.Context(), "unix", filepath.Join(filepath.Dir(file), strings.Repeat("a", 100)))
	require.ErrorContains(t, err, "may have 107")
}
