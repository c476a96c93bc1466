package netnsexec_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// threadNetNS is the namespace that the calling thread is in.
func threadNetNS(t testing.TB) string {
	t.Helper()
	link, err := os.Readlink("/proc/thread-self/ns/net")
	require.NoError(t, err)
	return link
}

// entries counts what is in a directory of /proc/self.
func entries(t testing.TB, dir string) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/" + dir)
	require.NoError(t, err)
	return len(e)
}

// settles polls, for what the kernel or the runtime does in its own time.
func settles(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, netnstest.Patience, 2*time.Millisecond, what)
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	sock, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "sock"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = sock.Close() })
	dead := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$")
	require.NoError(t, dead.Run())

	all := []error{netnsexec.ErrGone, netnsexec.ErrNotNetNS, netnsexec.ErrHost}
	for _, c := range []struct {
		name, path string
		want       error
	}{
		{"nothing there", filepath.Join(dir, "none"), netnsexec.ErrGone},
		{"no path", "", netnsexec.ErrGone},
		{"dangling link", symlink(t, dir, "/nonexistent/netns"), netnsexec.ErrGone},
		{"process ended", fmt.Sprintf("/proc/%d/ns/net", dead.Process.Pid), netnsexec.ErrGone},
		{"plain file, as a bind mount leaves it", file, netnsexec.ErrNotNetNS},
		{"directory", dir, netnsexec.ErrNotNetNS},
		{"fifo that nobody writes to", fifo, netnsexec.ErrNotNetNS},
		{"unix socket", sock.Addr().String(), netnsexec.ErrNotNetNS},
		{"device", "/dev/null", netnsexec.ErrNotNetNS},
		{"proc file", "/proc/self/status", netnsexec.ErrNotNetNS},
		{"mount namespace", "/proc/self/ns/mnt", netnsexec.ErrNotNetNS},
		{"user namespace", "/proc/self/ns/user", netnsexec.ErrNotNetNS},
		{"our own", "/proc/self/ns/net", netnsexec.ErrHost},
		{"our own through a link", symlink(t, dir, "/proc/self/ns/net"), netnsexec.ErrHost},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, err := netnsexec.Open(c.path)
			require.Nil(t, ns)
			for _, e := range all {
				assert.Equal(t, e == c.want, errors.Is(err, e), "%v: is it %v?", err, e) //nolint:errorlint // which of them
			}
			assert.Equal(t, c.want == netnsexec.ErrGone, errors.Is(err, fs.ErrNotExist)) //nolint:errorlint // as above
			assert.ErrorContains(t, err, fmt.Sprintf("open network namespace %q: ", c.path))
		})
	}
}

func symlink(t testing.TB, dir, to string) string {
	t.Helper()
	at := filepath.Join(dir, strings.ReplaceAll(to, "/", "_"))
	require.NoError(t, os.Symlink(to, at))
	return at
}

// A process that is in a pod itself must not take the node's namespace for a pod's. The node is acted by a PID
// namespace, because the real process 1 may be out of sight.
func TestOpenRefusesProcessOne(t *testing.T) {
	t.Parallel()
	var out, errs strings.Builder
	cmd := childCmd(t.Context(), t, "init")
	cmd.Args = append(cmd.Args, netnstest.New(t).Path())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), &errs)
	assert.Equal(t, "refused: the host's own network namespace", out.String())
}

func readlink(t testing.TB, path string) string {
	t.Helper()
	link, err := os.Readlink(path)
	require.NoError(t, err)
	return link
}

// TestOpenHost opens what Open refuses, and refuses all else that Open does.
func TestOpenHost(t *testing.T) {
	ns, err := netnsexec.OpenHost("/proc/self/ns/net")
	require.NoError(t, err)
	current, err := netnsexec.Current()
	require.NoError(t, err)
	assert.Equal(t, current.ID(), ns.ID())
	require.NoError(t, ns.Close())
	require.NoError(t, current.Close())
	_, err = netnsexec.OpenHost(t.TempDir())
	require.ErrorIs(t, err, netnsexec.ErrNotNetNS)
	_, err = netnsexec.OpenHost(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, netnsexec.ErrGone)
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	a, b := netnstest.New(t), netnstest.New(t)
	again, err := netnsexec.Open(a.Path())
	require.NoError(t, err)
	assert.Equal(t, a.ID(), again.ID())
	assert.NotEqual(t, a.ID(), b.ID())
	assert.NotEqual(t, a.Fd(), again.Fd())
	assert.Equal(t, a.Path(), again.Path())
	require.NoError(t, a.Do(func() error {
		assert.Equal(t, a.ID().String(), threadNetNS(t))
		return nil
	}))

	require.NoError(t, again.Close())
	require.NoError(t, again.Close(), "closing twice is fine")
	assert.Equal(t, -1, again.Fd())
	require.ErrorIs(t, again.Do(func() error { return nil }), os.ErrClosed)
	_, err = again.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, again.Run(childCmd(t.Context(), t, "netns")), os.ErrClosed)
	require.ErrorIs(t, again.Sandbox().Run(childCmd(t.Context(), t, "netns")), os.ErrClosed)
}

func TestCurrent(t *testing.T) {
	t.Parallel()
	ns, err := netnsexec.Current()
	require.NoError(t, err)
	defer func() { _ = ns.Close() }()
	own := readlink(t, "/proc/self/ns/net")
	assert.Equal(t, own, ns.ID().String())
	assert.Equal(t, own, output(t, ns, "netns"))
	require.NoError(t, ns.Do(func() error {
		assert.Equal(t, own, threadNetNS(t))
		return nil
	}))
	fd, err := ns.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
}

func TestDoRestores(t *testing.T) {
	t.Parallel()
	ns, other := netnstest.New(t), netnstest.New(t)
	home := threadNetNS(t)
	boom := errors.New("boom")
	var tid int
	inside := func(then func() error) func() error {
		return func() error {
			tid = unix.Gettid()
			assert.NotEqual(t, os.Getpid(), tid, "the main thread stays where it is")
			assert.Equal(t, ns.ID().String(), threadNetNS(t))
			return then()
		}
	}
	var p *netnsexec.PanicError
	for name, c := range map[string]struct {
		fn    func() error
		check func(error)
	}{
		"nil":   {func() error { return nil }, func(err error) { require.NoError(t, err) }},
		"error": {func() error { return boom }, func(err error) { require.Equal(t, boom, err) }},
		"panic": {func() error { panic("ouch") }, func(err error) {
			require.ErrorAs(t, err, &p)
			assert.Equal(t, "ouch", p.Value)
			assert.Contains(t, err.Error(), "TestDoRestores", "the stack leads to the function")
		}},
		"panic with an error": {func() error { panic(boom) }, func(err error) { require.ErrorIs(t, err, boom) }},
		"Goexit": {func() error {
			runtime.Goexit()
			return nil
		}, func(err error) { require.EqualError(t, err, "function ended its goroutine instead of returning") }},
		"nested": {func() error {
			return errors.Join(
				other.Do(func() error {
					assert.Equal(t, other.ID().String(), threadNetNS(t))
					_, err := netnsexec.Open("/proc/self/ns/net") // the host is the host from wherever one looks
					require.ErrorIs(t, err, netnsexec.ErrHost)
					again, err := netnsexec.Open(other.Path())
					require.NoError(t, err)
					return again.Close()
				}),
				func() error {
					assert.Equal(t, ns.ID().String(), threadNetNS(t))
					return nil
				}())
		}, func(err error) { require.NoError(t, err) }},
	} {
		t.Run(name, func(t *testing.T) {
			c.check(ns.Do(inside(c.fn)))
			assert.Equal(t, home, threadNetNS(t))
			settles(t, "the thread is home, or gone", func() bool {
				link, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/net", tid))
				return err != nil || link == home
			})
		})
	}
}

// A thread that lost the right to go home is not put right by anything, so it must never serve again.
func TestThreadThatCannotBeRestoredDies(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	for range 20 {
		var tid int
		require.NoError(t, ns.Do(func() error {
			tid = unix.Gettid()
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // Pid 0: this thread alone
			var none [2]unix.CapUserData
			return unix.Capset(&hdr, &none[0])
		}))
		settles(t, "the thread ends", func() bool {
			return errors.Is(unix.Access(fmt.Sprintf("/proc/self/task/%d", tid), unix.F_OK), unix.ENOENT)
		})
	}
	allThreadsHome(t)
}

// allThreadsHome proves that no thread was left in another namespace, once the running ones have come back.
func allThreadsHome(t testing.TB) {
	t.Helper()
	home := readlink(t, "/proc/self/ns/net")
	settles(t, "all threads are home", func() bool {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		require.NoError(t, err)
		for _, task := range tasks {
			if link, err := os.Readlink(task); err == nil && link != home {
				return false
			}
		}
		return true
	})
}

func TestWithoutTheRight(t *testing.T) {
	t.Parallel()
	file, err := os.Open(netnstest.New(t).Path())
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	var out, errs strings.Builder
	cmd := childCmd(t.Context(), t, "unprivileged")
	cmd.Path = "/proc/self/exe" // the way to the file itself may be closed to others
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), &errs)
	assert.Equal(t, readlink(t, "/proc/self/ns/net"), out.String(), "ran without the sandbox")
}

func TestSocketBelongsToTheNamespace(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	fd, err := ns.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	assert.Equal(t, unix.FD_CLOEXEC, flags)
	// SIOCGSKNS gives a socket's namespace (linux/sockios.h).
	nsfd, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	require.NoError(t, err)
	defer func() { _ = unix.Close(nsfd) }()
	assert.Equal(t, ns.ID().String(), readlink(t, fmt.Sprintf("/proc/self/fd/%d", nsfd)))

	_, err = ns.Socket(-1, unix.SOCK_STREAM, 0)
	require.ErrorIs(t, err, unix.EAFNOSUPPORT)
}

// 1,000 entries, 32 at a time, of each kind: the right namespace every time, and nothing is left.
func TestLoad(t *testing.T) {
	spaces := []*netnsexec.NetNS{netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	fds, threads := entries(t, "fd"), entries(t, "task")
	var seen sync.Map
	var group errgroup.Group
	group.SetLimit(32)
	for i := range 1000 {
		ns := spaces[i%len(spaces)]
		group.Go(func() error {
			switch {
			case i%50 == 7:
				var out strings.Builder
				cmd := exec.CommandContext(t.Context(), "readlink", "/proc/self/ns/net")
				cmd.Stdout = &out
				var r runner = ns
				if i%100 == 7 {
					r = ns.Sandbox()
				}
				if err := r.Run(cmd); err != nil || strings.TrimSpace(out.String()) != ns.ID().String() {
					return fmt.Errorf("child in %s, not %s: %w", &out, ns.ID(), err)
				}
				return nil
			case i%10 == 3:
				fd, err := ns.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
				if err != nil {
					return err
				}
				return unix.Close(fd)
			}
			return ns.Do(func() error {
				seen.Store(unix.Gettid(), true)
				link, err := os.Readlink("/proc/thread-self/ns/net")
				if err != nil || link != ns.ID().String() {
					return fmt.Errorf("in %s, not %s: %w", link, ns.ID(), err)
				}
				runtime.Gosched()
				return nil
			})
		})
	}
	require.NoError(t, group.Wait())
	// Restored threads go back to the runtime's idle ones, which it keeps: at most as many as were at work at once.
	settles(t, "threads settle", func() bool { return entries(t, "task") <= threads+2*32+8 })
	settles(t, "descriptors are closed", func() bool { return entries(t, "fd") <= fds })
	allThreadsHome(t)
}

// TestMake: a namespace of nobody's is empty and another than ours; the thread that made it is not left in it.
func TestMake(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	own := threadNetNS(t)
	ns, err := netnsexec.New()
	require.NoError(t, err)
	require.NoError(t, ns.Do(func() error {
		assert.NotEqual(t, own, threadNetNS(t))
		links, err := net.Interfaces()
		assert.Len(t, links, 1, "lo")
		return err
	}))
	assert.Equal(t, own, threadNetNS(t))
	other, err := netnsexec.New()
	require.NoError(t, err)
	assert.NotEqual(t, ns.ID(), other.ID())
	require.NoError(t, errors.Join(ns.Close(), other.Close()))
	require.ErrorIs(t, ns.Do(func() error { return nil }), os.ErrClosed)
}
