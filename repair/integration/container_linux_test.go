package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// caps are the capabilities by their names in a pod's manifest (linux/capability.h).
var caps = map[string]uintptr{
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH, "FOWNER": unix.CAP_FOWNER,
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW,
	"SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_CHROOT": unix.CAP_SYS_CHROOT, "SYS_PTRACE": unix.CAP_SYS_PTRACE,
}

// mount is a hostPath volume, or another one, of a container.
type mount struct {
	from, to string
	readOnly bool
}

// container is the agent's container as a runtime makes it: a root file system with
// the image's files and nothing else, read-only, no /tmp; a mount namespace and a
// proc file system of its own; user 0 with no capabilities but those given, and no
// way to get more. It shares the host's network, and its processes (hostPID).
type container struct {
	files  map[string]string // by path inside: the image's
	mounts []mount
	caps   []string
	env    []string
	args   []string
	// init is the process that is the host's first one; 0: the machine's.
	init int
}

// start runs the container until the test ends. It serves its address.
func (c container) start(t testing.TB) *process {
	t.Helper()
	netnstest.Require(t, netnstest.Root)
	port, err := proctest.FreePort()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	p := &process{url: "http://" + address, log: &proctest.Buffer{}}
	p.cmd = exec.Command(c.args[0], append(c.args[1:], "--metrics-address="+address, "--health-address="+address)...) //nolint:gosec // a test's
	p.cmd.Env, p.cmd.Dir = append([]string{"PATH=/usr/local/bin"}, c.env...), "/"
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	// It is killed with its parent thread, which waits for it: with the test, however that ends.
	if c.init == 0 { // else with that process, and its parent looks like another one
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	}
	root := t.TempDir()
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is of no use to anybody afterwards
		err := c.enter(root)
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			ended <- p.cmd.Wait()
		}
	}()
	require.NoError(t, <-started)
	p.wait = func() error {
		err := <-ended
		ended <- err
		return err
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(unix.SIGTERM)
		err := p.wait()
		if t.Failed() {
			t.Logf("%v: %v\n%s", p.cmd.Args, err, p.log)
		}
	})
	return p
}

// enter puts the calling thread, and so what it starts, into the container.
func (c container) enter(root string) error {
	if c.init != 0 {
		if err := joinProcesses(c.init); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	at := func(path string) string { return filepath.Join(root, path) }
	bind := func(from, to string, readOnly bool) error {
		if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil || !readOnly {
			return err
		}
		return unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("root", root, "tmpfs", 0, ""),
		os.MkdirAll(at("proc"), 0o755), os.MkdirAll(at("dev"), 0o755),
		// By a process that this thread starts: of what it sees, not this one.
		exec.Command("mount", "-t", "proc", "proc", at("proc")).Run(), //nolint:gosec,noctx // a test's
		bind(at("proc/sys"), at("proc/sys"), true),
		unix.Mknod(at("dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
	)
	for inside, file := range c.files {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(at(inside)), 0o755), os.WriteFile(at(inside), nil, 0o600), bind(file, at(inside), true))
	}
	for _, m := range c.mounts {
		err = errors.Join(err, os.MkdirAll(at(m.to), 0o755), bind(m.from, at(m.to), m.readOnly))
	}
	err = errors.Join(err,
		unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
		unix.Chdir(root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/"))
	if err != nil {
		return fmt.Errorf("make a container: %w", err)
	}
	keep := map[uintptr]bool{}
	for _, name := range c.caps {
		keep[caps[name]] = true
	}
	for n := uintptr(0); n <= unix.CAP_LAST_CAP; n++ {
		if !keep[n] {
			// EINVAL: a newer one than the kernel's.
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("drop capability %d: %w", n, err)
			}
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// joinProcesses makes what the calling thread starts one of the processes of which the given one is the first.
func joinProcesses(init int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", init))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return os.NewSyscallError("setns", unix.Setns(int(f.Fd()), unix.CLONE_NEWPID))
}
