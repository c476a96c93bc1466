package netnsexec_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestAtRoot: what happens at another process's root happens in its mounts, and stays there.
func TestAtRoot(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	dir, ns := t.TempDir(), netnstest.New(t)
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
	host := exec.CommandContext(t.Context(), "sleep", "infinity")
	host.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	require.NoError(t, host.Start())
	t.Cleanup(func() { _ = host.Process.Kill(); _ = host.Wait() })
	root := fmt.Sprintf("/proc/%d/root", host.Process.Pid)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "ns"), nil, 0o600))
	require.NoError(t, netnsexec.AtRoot(root, func() error {
		return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), filepath.Join(dir, "ns"), "", unix.MS_BIND, "")
	}))
	path := filepath.Join(dir, "link", "ns")
	_, err := netnsexec.Open(path)
	require.ErrorIs(t, err, netnsexec.ErrNotNetNS, "not in our mounts")
	var seen *netnsexec.NetNS
	require.NoError(t, netnsexec.AtRoot(root, func() (err error) { // for longer than the thread that mounted
		seen, err = netnsexec.Open(path)
		return err
	}))
	defer func() { require.NoError(t, seen.Close()) }()
	assert.Equal(t, ns.ID(), seen.ID())

	require.NoError(t, os.WriteFile(filepath.Join(dir, "here"), nil, 0o600))
	require.NoError(t, netnsexec.AtRoot(dir, func() error { return unix.Access("/here", unix.F_OK) }), "a directory")
	failed := errors.New("failed")
	for _, own := range []string{"", "/"} {
		require.ErrorIs(t, netnsexec.AtRoot(own, func() error { return failed }), failed)
	}
	for _, none := range []string{"/proc/0/root", filepath.Join(dir, "none"), filepath.Join(dir, "here")} {
		err := netnsexec.AtRoot(none, func() error { t.Error("called"); return nil })
		require.ErrorIs(t, err, netnsexec.ErrRoot)
		assert.ErrorContains(t, err, "enter root directory "+none+": ")
	}
}

func TestFromFile(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	f, err := os.Open(ns.Path())
	require.NoError(t, err)
	got, err := netnsexec.FromFile(f, "as the runtime says")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.Equal(t, ns.ID(), got.ID())
	assert.Equal(t, "as the runtime says", got.Path())
	require.NoError(t, got.Do(func() error { return nil }), "it is a descriptor of its own")
	flags, err := unix.FcntlInt(uintptr(got.Fd()), unix.F_GETFD, 0)
	require.NoError(t, err)
	assert.NotZero(t, flags&unix.FD_CLOEXEC)
	require.NoError(t, got.Close())

	_, err = netnsexec.FromFile(f, "x")
	require.ErrorContains(t, err, "closed")
	own, err := os.Open("/proc/self/ns/net")
	require.NoError(t, err)
	defer func() { _ = own.Close() }()
	_, err = netnsexec.FromFile(own, "x")
	require.ErrorIs(t, err, netnsexec.ErrHost)
	pipe, other, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _, _ = pipe.Close(), other.Close() }()
	_, err = netnsexec.FromFile(pipe, "x")
	require.ErrorIs(t, err, netnsexec.ErrNotNetNS)
}
