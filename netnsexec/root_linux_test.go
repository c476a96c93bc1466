package netnsexec_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/hostroottest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

var hostPrograms = map[string]string{"cat": "cat", "ls": "ls", "readlink": "readlink"}

// in is what a program of the root prints.
func in(t testing.TB, r runner, root string, args ...string) string {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), &out, &errs
	require.NoError(t, r.Run(cmd), "%v: %s", args, &errs)
	return out.String()
}

// A program of another root runs there, and the sandbox hides what there is to hide there: for a directory of our own
// mounts as for the root of a process with mounts of its own.
func TestSandboxInAnotherRoot(t *testing.T) {
	t.Parallel()
	dir := hostroottest.New(t, hostPrograms)
	ns, _ := runners(t)
	before := mounts(t)
	for name, root := range map[string]string{"directory": dir, "process": hostroottest.Process(t, dir), "with slash": dir + "/"} {
		assert.Equal(t, hostroottest.NameServices, in(t, ns, root, "/usr/sbin/cat", "/etc/nsswitch.conf"), "%s: without a sandbox", name)

		assert.Empty(t, in(t, ns.Sandbox(), root, "/usr/sbin/cat", "/etc/nsswitch.conf"), name)
		assert.Empty(t, in(t, ns.Sandbox(), root, "/usr/sbin/ls", "/run"), name)
		assert.Equal(t, "etc\n", in(t, ns.Sandbox(), root, "/sbin/ls", "-d", "etc"), "%s: it starts in its root", name)
		assert.Equal(t, "/etc/alternatives/ls\n", in(t, ns.Sandbox(), root, "/usr/sbin/readlink", "/usr/sbin/ls"), name)
	}
	process := hostroottest.Process(t, dir)
	assert.Equal(t, ns.ID().String()+"\n", in(t, ns.Sandbox(), process, "/usr/sbin/readlink", "/proc/self/ns/net"))
	assert.Equal(t, "host\n", in(t, ns, process, "/usr/sbin/ls", "/run"), "the host's is untouched")
	assert.Equal(t, hostroottest.NameServices, in(t, ns, process, "/usr/sbin/cat", "/etc/nsswitch.conf"))
	for mount := range strings.Lines(mounts(t)) {
		assert.False(t, !strings.Contains(before, mount) && strings.Contains(mount, dir), "left behind: %s", mount)
	}
	allThreadsHome(t)
}

func mounts(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	return string(text)
}

// A link of the root that is absolute leads to below it, also where the sandbox covers what it leads to.
func TestSandboxFollowsLinksOfTheRoot(t *testing.T) {
	t.Parallel()
	dir := hostroottest.New(t, hostPrograms)
	require.NoError(t, os.Rename(filepath.Join(dir, "etc/nsswitch.conf"), filepath.Join(dir, "opt/nsswitch.conf")))
	require.NoError(t, os.Symlink("/opt/nsswitch.conf", filepath.Join(dir, "etc/nsswitch.conf")))
	require.NoError(t, os.Symlink("/usr/sbin/cat", filepath.Join(dir, "run/cat")))
	ns, _ := runners(t)
	assert.Empty(t, in(t, ns.Sandbox(), dir, "/run/cat", "/opt/nsswitch.conf"))
}

func TestSandboxRootsThatCannotBe(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	dir := t.TempDir()
	run := func(root string) error {
		cmd := exec.CommandContext(t.Context(), "/usr/sbin/cat")
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), &strings.Builder{}, &strings.Builder{}
		err := ns.Sandbox().Run(cmd)
		assert.Equal(t, root, cmd.SysProcAttr.Chroot, "the command stays as it was")
		return err
	}
	require.ErrorIs(t, run(dir+"/none"), unix.ENOENT)
	require.ErrorContains(t, run(dir), "/usr/sbin/cat", "a root without the program")
	// Roots that are only called like those of processes.
	require.NoError(t, os.MkdirAll(dir+"/1/root", 0o755))
	require.ErrorContains(t, run(dir+"/1/root"), "/usr/sbin/cat")
	require.NoError(t, os.MkdirAll(dir+"/1/ns", 0o755))
	require.NoError(t, os.WriteFile(dir+"/1/ns/mnt", nil, 0o600))
	require.ErrorContains(t, run(dir+"/1/root"), "/usr/sbin/cat")
	require.NoError(t, os.Remove(dir+"/1/ns/mnt"))
	require.NoError(t, unix.Mkfifo(dir+"/1/ns/mnt", 0o600))
	require.ErrorContains(t, run(dir+"/1/root"), "/usr/sbin/cat")
	require.NoError(t, os.RemoveAll(dir+"/1/root"))
	require.NoError(t, os.WriteFile(dir+"/1/root", nil, 0o600))
	require.ErrorIs(t, run(dir+"/1/root"), unix.ENOTDIR)
}
