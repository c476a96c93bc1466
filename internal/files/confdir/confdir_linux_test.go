package confdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/conflist"
)

const list = `{"cniVersion":"1.0.0","name":"k8s","plugins":[{"type":"meshcni","dialect":"kuma"}]}`

// TestLinksInAContainer: of the host's directory, which a container has elsewhere, a link that leads out is unreadable, and
// never absent: on the host it leads to a file.
func TestLinksInAContainer(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(outside, []byte(list), 0o600))
	for name, c := range map[string]struct {
		to     string
		passed bool // a runtime passes over it, too
		err    string
	}{
		"absolute":          {to: outside, err: "escapes"},
		"absolute, missing": {to: "/opt/absent/list", err: "escapes"},
		"out of it":         {to: "../list", err: "escapes"},
		"inside":            {to: "file"},
		"inside, missing":   {to: "absent", passed: true, err: "no such file"},
		"masked":            {to: os.DevNull, passed: true},
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(list), 0o600))
		require.NoError(t, os.Symlink(c.to, filepath.Join(dir, "10-k8s.conflist")))
		fsys, done, err := openRoot(dir)
		require.NoError(t, err)
		text, err := fs.ReadFile(fsys, "10-k8s.conflist")
		_, primaryErr := conflist.Primary(fsys)
		done()
		if c.err != "" {
			require.ErrorContains(t, err, c.err, name)
			assert.Equal(t, c.passed, conflist.PassedOver(err), name)
		} else {
			require.NoError(t, err, name)
			assert.Equal(t, c.passed, len(text) == 0, name)
		}
		assert.Equal(t, c.err == "escapes", errors.As(primaryErr, new(*conflist.UnreadableError)), name)
	}
}

// TestWhatWouldBlock: a pipe or a huge file is an error, and no wait.
func TestWhatWouldBlock(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "10-pipe.conflist"), 0o600))
	_, err := Entry(dir, meshcni.Identity{}, []string{"meshcni"})
	require.ErrorContains(t, err, "not a regular file")
	require.NoError(t, os.Remove(filepath.Join(dir, "10-pipe.conflist")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "10-huge.conflist"), make([]byte, maxConfig+1), 0o600))
	_, err = Entry(dir, meshcni.Identity{}, []string{"meshcni"})
	require.ErrorContains(t, err, "larger than 2 MiB")
	require.NoError(t, os.Remove(filepath.Join(dir, "10-huge.conflist")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "10-k8s.conflist"), []byte(list), 0o600))
	e, err := Entry(dir, meshcni.Identity{}, []string{"meshcni"})
	require.NoError(t, err)
	assert.Equal(t, "kuma", e.Dialects.String())
	assert.Equal(t, filepath.Join(dir, "10-k8s.conflist"), e.File)
}
