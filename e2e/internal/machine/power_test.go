package machine

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A mount that somebody else has removed since it was listed, with its directory or without, keeps none of the others.
func TestUnmountPassesOverWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	require.NoError(t, unmount([]string{filepath.Join(dir, "gone"), t.TempDir(), dir}))
	assert.Equal(t, unix.EINVAL, unix.Unmount(dir, 0), "it is unmounted")
}
