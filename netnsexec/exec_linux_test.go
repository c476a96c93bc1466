package netnsexec_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// runners are the two ways to run a command in a fresh namespace.
func runners(t testing.TB) (*netnsexec.NetNS, map[string]runner) {
	ns := netnstest.New(t)
	return ns, map[string]runner{"plain": ns, "sandbox": ns.Sandbox()}
}

func TestChildIsInTheNamespace(t *testing.T) {
	t.Parallel()
	ns, rs := runners(t)
	for name, r := range rs {
		assert.Equal(t, ns.ID().String(), output(t, r, "netns"), name)
	}
	allThreadsHome(t)
}

func TestRunErrors(t *testing.T) {
	t.Parallel()
	_, rs := runners(t)
	for name, r := range rs {
		var exit *exec.ExitError
		require.ErrorAs(t, r.Run(childCmd(t.Context(), t, "fail")), &exit, name)
		assert.Equal(t, 7, exit.ExitCode(), name)
		require.ErrorIs(t, r.Run(exec.CommandContext(t.Context(), "/nonexistent/iptables")), fs.ErrNotExist, name)
		require.ErrorIs(t, r.Run(exec.CommandContext(t.Context(), "no-such-program")), exec.ErrNotFound, name)
	}
}

func TestContextEndsTheChild(t *testing.T) {
	t.Parallel()
	_, rs := runners(t)
	for name, r := range rs {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := childCmd(ctx, t, "sleep")
		cmd.Stdout = writerFunc(func(b []byte) (int, error) {
			cancel() // it runs
			return len(b), nil
		})
		var exit *exec.ExitError
		require.ErrorAs(t, r.Run(cmd), &exit, name)
		assert.Equal(t, "signal: killed", exit.Error(), name)
		require.ErrorIs(t, unix.Kill(cmd.Process.Pid, 0), unix.ESRCH, "%s: still there", name)
	}
	for name, r := range rs {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		cmd := childCmd(ctx, t, "sleep")
		err := r.Run(cmd)
		cancel()
		var exit *exec.ExitError
		if !errors.Is(err, context.DeadlineExceeded) { // on a slow machine the deadline may come before the start
			require.ErrorAs(t, err, &exit, name)
			assert.Equal(t, "signal: killed", exit.Error(), name)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A child that ends while its own child holds the output open does not hang us.
func TestGrandchildDoesNotHangRun(t *testing.T) {
	t.Parallel()
	_, rs := runners(t)
	for name, r := range rs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			cmd := childCmd(t.Context(), t, "grandchild")
			cmd.Stdout = &out
			require.Zero(t, cmd.WaitDelay)
			err := r.Run(cmd)
			pid, perr := strconv.Atoi(strings.TrimSpace(strings.Split(out.String(), "\n")[0]))
			require.NoError(t, perr)
			require.NoError(t, unix.Kill(pid, unix.SIGKILL))
			require.ErrorIs(t, err, exec.ErrWaitDelay)
			assert.Equal(t, time.Duration(10000000000), cmd.WaitDelay)
		})
	}
	cmd := childCmd(t.Context(), t, "netns")
	cmd.WaitDelay = time.Minute
	require.NoError(t, rs["plain"].Run(cmd))
	assert.Equal(t, time.Minute, cmd.WaitDelay, "a delay that was chosen stays")
}

func TestSandboxHidesNameServices(t *testing.T) {
	t.Parallel()
	_, rs := runners(t)
	data, err := os.ReadFile("/etc/nsswitch.conf")
	if errors.Is(err, fs.ErrNotExist) {
		netnstest.Require(t, netnstest.Need{Name: "file /etc/nsswitch.conf", Check: func() error { return err }})
	}
	require.NoError(t, err)
	require.NotEmpty(t, data)
	assert.Equal(t, strconv.Quote(string(data)), output(t, rs["plain"], "nsswitch"))
	assert.Equal(t, `""`, output(t, rs["sandbox"], "nsswitch"))
	after, err := os.ReadFile("/etc/nsswitch.conf")
	require.NoError(t, err)
	assert.Equal(t, data, after, "the host's is untouched")
}

// Whoever holds the host's xtables lock does not hold up a pod, and sandboxes do not hold up each other.
func TestSandboxHasItsOwnLock(t *testing.T) {
	_, rs := runners(t)
	lock, err := os.OpenFile(lockPath, os.O_CREATE|os.O_RDONLY, 0o600)
	require.NoError(t, err)
	defer func() { _ = lock.Close() }()
	// The file stays, as iptables leaves it: to remove a lock file that somebody else opened would make it two locks.
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))

	assert.Equal(t, "locked", output(t, rs["sandbox"], "lock"))
	assert.Equal(t, "0", output(t, rs["sandbox"], "run"), "each /run is a fresh one")

	var errs strings.Builder
	cmd := childCmd(t.Context(), t, "lock")
	cmd.Stderr = &errs
	require.Error(t, rs["plain"].Run(cmd), "without the sandbox it is the host's")
	assert.Contains(t, errs.String(), unix.EAGAIN.Error())
}

func TestSandboxShowsTheHostNothing(t *testing.T) {
	ns, rs := runners(t)
	var out, errs strings.Builder
	cmd := childCmd(t.Context(), t, "shared")
	cmd.Args = append(cmd.Args, ns.Path())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), &errs)
	assert.Equal(t, "mounted", out.String())

	assert.Equal(t, "mounted", output(t, rs["sandbox"], "mount"))
	home := readlink(t, "/proc/self/ns/mnt")
	settles(t, "no thread stays in a mount namespace of its own", func() bool {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/mnt")
		require.NoError(t, err)
		for _, task := range tasks {
			if link, err := os.Readlink(task); err == nil && link != home {
				return false
			}
		}
		return true
	})
}

// Programs may be reached through /run (NixOS), where the sandbox hides them.
func TestSandboxProgramBelowRun(t *testing.T) {
	t.Parallel()
	ns, _ := runners(t)
	dir, err := os.MkdirTemp("/run", "netnsexec-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	link := filepath.Join(dir, "true")
	target, err := exec.LookPath("true")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, ns.Sandbox().Run(exec.CommandContext(t.Context(), link)))

	file := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"), 0o700)) //nolint:gosec // to be run
	err = ns.Sandbox().Run(exec.CommandContext(t.Context(), file))
	require.ErrorContains(t, err, "the sandbox hides /run, and the program is below it")
	require.ErrorIs(t, ns.Sandbox().Run(exec.CommandContext(t.Context(), filepath.Join(dir, "none"))), fs.ErrNotExist)
}

func BenchmarkDo(b *testing.B) {
	ns := netnstest.New(b)
	for b.Loop() {
		if err := ns.Do(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTrue is what a process costs: by os/exec alone, in a namespace, in the sandbox.
func BenchmarkTrue(b *testing.B) {
	ns := netnstest.New(b)
	for _, c := range []struct {
		name string
		run  func(*exec.Cmd) error
	}{{"bare", (*exec.Cmd).Run}, {"netns", ns.Run}, {"sandbox", ns.Sandbox().Run}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if err := c.run(exec.CommandContext(b.Context(), "/bin/true")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
