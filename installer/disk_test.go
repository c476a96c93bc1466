//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

func TestSymlinkedFile(t *testing.T) {
	n := newNode(t, nil)
	real := filepath.Join(t.TempDir(), "real.conflist")
	n.write(real, calicoList, 0o644)
	require.NoError(t, os.Symlink(real, n.conf("10-calico.conflist")))
	n.install()
	require.True(t, n.captured())
	link, err := os.Readlink(n.conf("10-calico.conflist"))
	require.NoError(t, err)
	assert.Equal(t, real, link)
	n.uninstall()
	assert.Equal(t, calicoList, n.read(real))
}

func TestDirectoryInAFilesPlace(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	require.NoError(t, os.Mkdir(n.conf("05-x.conflist"), 0o755))
	steps := n.install()
	assert.Equal(t, "10-calico.conflist", steps.Target)
	require.Len(t, steps.Skipped, 1)
	require.NoError(t, os.Remove(n.binary()))
	require.NoError(t, os.Mkdir(n.binary(), 0o755))
	_, err := Install(t.Context(), n.Config, discard)
	require.ErrorContains(t, err, n.binary())
	require.ErrorContains(t, err, "directory")
}

func TestFullDisk(t *testing.T) {
	n := newNode(t, nil)
	mount(t, n.CNIConfDir, "size=16k")
	n.write(n.conf("10-calico.conflist"), calicoList, 0o644)
	filler := fill(t, n.CNIConfDir)
	_, err := Install(t.Context(), n.Config, discard)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "unchanged")
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
	assert.Len(t, n.tree(), 2, "no temporary file stays")
	require.NoError(t, os.Remove(filler))
	n.install()
	require.True(t, n.captured())
}

func TestReadOnlyMount(t *testing.T) {
	n := newNode(t, nil)
	mount(t, n.CNIConfDir, "size=64k")
	n.write(n.conf("10-calico.conflist"), calicoList, 0o644)
	readOnly(t, n.CNIConfDir)
	_, err := Install(t.Context(), n.Config, discard)
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorContains(t, err, "10-calico.conflist")
	require.ErrorContains(t, err, "readOnly")
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
}

// The uninstall that cannot take the entry out leaves the binary that it names.
func TestUninstallThatFailsLeavesTheBinary(t *testing.T) {
	n := newNode(t, nil)
	mount(t, n.CNIConfDir, "size=64k")
	n.write(n.conf("10-calico.conflist"), calicoList, 0o644)
	n.install()
	readOnly(t, n.CNIConfDir)
	_, err := Uninstall(t.Context(), n.Config, discard)
	require.ErrorIs(t, err, syscall.EROFS)
	assert.FileExists(t, n.binary())
}

func TestPermissionDenied(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	if os.Geteuid() == 0 { // root is refused by the immutable flag only
		setImmutable(t, n.CNIConfDir, true)
		defer setImmutable(t, n.CNIConfDir, false)
	} else {
		require.NoError(t, os.Chmod(n.CNIConfDir, 0o555))
		defer os.Chmod(n.CNIConfDir, 0o755)
	}
	_, err := Install(t.Context(), n.Config, discard)
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "CAP_DAC_OVERRIDE")
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
}

func setImmutable(t *testing.T, path string, on bool) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	flags := 0
	if on {
		flags = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	}
	netnstest.Require(t, netnstest.Need{Name: "a file system with the immutable flag", Check: func() error {
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}})
}

func mount(t *testing.T, dir, options string) {
	t.Helper()
	netnstest.Require(t, netnstest.Need{Name: "the right to mount a tmpfs", Check: func() error {
		return unix.Mount("tmpfs", dir, "tmpfs", 0, options)
	}})
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}
