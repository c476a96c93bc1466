package netnsexec

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Run starts cmd in n and waits for it. Errors are those of [exec.Cmd.Run], such as *exec.ExitError, or say that n could
// not be entered.
//
// When cmd's context ends, the process is killed and Run returns. A zero cmd.WaitDelay becomes waitDelay, so that a
// grandchild with an open output pipe cannot hang Run (exec.ErrWaitDelay).
func (n *NetNS) Run(cmd *exec.Cmd) error {
	setWaitDelay(cmd)
	if err := n.Do(cmd.Start); err != nil {
		return err
	}
	return cmd.Wait() // outside of Do, which would hold the thread while the process runs
}

func setWaitDelay(cmd *exec.Cmd) {
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = waitDelay
	}
}

// Sandbox runs the host's iptables for a pod, apart from the host. See [NetNS.Sandbox].
type Sandbox struct {
	ns *NetNS
}

// Sandbox returns a runner whose processes are in n and in a private mount namespace, where
//
//   - /etc/nsswitch.conf is empty: iptables' owner match looks up a user named "1337" before it takes the number, and an
//     unresponsive name service would cost most of a minute a pod;
//   - /run is an empty tmpfs: the xtables lock, /run/xtables.lock, is private, so neither side waits for the other.
//     (nscd's socket is out of reach too.)
//
// Other files are the host's. The host sees nothing of it, and nothing remains.
func (n *NetNS) Sandbox() *Sandbox { return &Sandbox{ns: n} }

// Run is [NetNS.Run] in the sandbox. For a command under /run, symbolic links are resolved first (NixOS has its programs
// at /run/current-system). A command or a cmd.Dir that really is there cannot be used.
//
// cmd.SysProcAttr.Chroot is the sandbox's root too: the files above are those below it, and cmd.Path is a path below it. A
// root named PROC/PID/root means the mounts of that process, which are entered as nsenter does: "/proc/1/root" is the
// host's root in a container that shares the host's processes. That needs CAP_SYS_CHROOT besides CAP_SYS_ADMIN, and
// CAP_SYS_PTRACE for /proc/1. A nil cmd.Stdin, Stdout or Stderr is then that root's /dev/null.
//
// The mount namespace needs CAP_SYS_ADMIN. Without it, cmd runs without the sandbox if the namespace is [Current] (an
// init container, which shares neither lock nor name services with the host). If it is from [Open], Run fails with
// errors.Is(err, fs.ErrPermission), and nothing has run.
func (s *Sandbox) Run(cmd *exec.Cmd) error {
	setWaitDelay(cmd)
	var refused error
	err := onThread(func(t *thread) error {
		// t.clean stays false: the thread cannot leave its mount namespace.
		if err := s.ns.enter(); err != nil {
			t.clean = true
			return err
		}
		path, attr := cmd.Path, cmd.SysProcAttr
		if path, attr, refused = isolate(path, attr); refused != nil {
			return fmt.Errorf("run %s in a sandbox: %w", cmd.Path, refused)
		}
		defer func(path string, attr *syscall.SysProcAttr) { cmd.Path, cmd.SysProcAttr = path, attr }(cmd.Path, cmd.SysProcAttr)
		cmd.Path, cmd.SysProcAttr = path, attr
		// Waiting here keeps the mount namespace until the process has ended. Whoever leaves it last takes the mounts
		// down, which nobody waits for on this thread.
		return cmd.Run()
	})
	if s.ns.current && (errors.Is(refused, unix.EPERM) || errors.Is(refused, unix.EACCES)) {
		return s.ns.Run(cmd)
	}
	return err
}

// isolate puts the calling thread into a mount namespace as [NetNS.Sandbox] describes it, with the root that attr asks
// for. It returns the program's path and the attributes as seen from there.
func isolate(path string, attr *syscall.SysProcAttr) (string, *syscall.SysProcAttr, error) {
	if attr == nil || attr.Chroot == "" {
		path, err := outsideRun(path)
		if err == nil {
			err = ownMounts()
		}
		if err == nil {
			err = hide("/dev/null")
		}
		return path, attr, err
	}
	inside := *attr
	inside.Chroot = "" // the thread is there already
	null, err := enterRoot(attr.Chroot)
	if err == nil {
		path, err = outsideRun(path)
	}
	if err == nil {
		err = hide(null)
	}
	if err == nil {
		err = unix.Chdir("/") // the working directory was outside of the new root
	}
	return path, &inside, err
}

// ownMounts puts the calling thread into a private mount namespace.
func ownMounts() error {
	// CLONE_FS: Go's threads share one fs_struct (root, working directory), and a thread that shares it cannot change its
	// mount namespace. CLONE_NEWNS implies it.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// Before any mount: with shared propagation, systemd's default, the host would see ours.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		if unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") != nil {
			return fmt.Errorf("make the mounts private: %w", err)
		}
	}
	return nil
}

// hide covers what the sandbox hides. null is the path of a null device.
func hide(null string) error {
	// A host without the file, or without /run, has nothing to hide there.
	if err := unix.Mount(null, "/etc/nsswitch.conf", "", unix.MS_BIND, ""); err != nil && !absent("/etc/nsswitch.conf") {
		return fmt.Errorf("hide /etc/nsswitch.conf: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", "/run", "tmpfs", flags, "size=64k,mode=0755"); err != nil && !absent("/run") {
		return fmt.Errorf("hide /run: %w", err)
	}
	return nil
}

func absent(path string) bool {
	return errors.Is(unix.Access(path, unix.F_OK), unix.ENOENT)
}

// outsideRun resolves the symbolic links of a path below /run, which the sandbox hides.
func outsideRun(path string) (string, error) {
	hidden := func(p string) bool { return strings.HasPrefix(p, "/run/") || strings.HasPrefix(p, "/var/run/") }
	if !hidden(path) {
		return path, nil
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if hidden(target) {
		return "", errors.New("the sandbox hides /run, and the program is below it")
	}
	return target, nil
}
