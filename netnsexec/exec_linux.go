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

// Run starts cmd from a thread in n, so that the process is born there, and waits for it. Errors are those of
// [exec.Cmd.Run] (an *exec.ExitError when the command failed) or say that n could not be entered.
//
// cmd's context is honoured: when it ends the process is killed and Run returns. A zero cmd.WaitDelay becomes
// [WaitDelay], so a grandchild that keeps an output pipe open cannot hang Run (exec.ErrWaitDelay then).
func (n *NetNS) Run(cmd *exec.Cmd) error {
	setWaitDelay(cmd)
	if err := n.Do(cmd.Start); err != nil {
		return err
	}
	return cmd.Wait() // out here: the thread need not be held while the process runs
}

func setWaitDelay(cmd *exec.Cmd) {
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = WaitDelay
	}
}

// Sandbox runs the host's iptables for a pod without touching what belongs to the host. See [NetNS.Sandbox].
type Sandbox struct {
	ns *NetNS
}

// Sandbox gives a runner whose processes are in n and in a private mount namespace as well, where
//
//   - /etc/nsswitch.conf is empty: iptables' owner match asks for a user named "1337" before it takes the number, and
//     a remote name service that does not answer would cost most of a minute a pod;
//   - /run is an empty tmpfs: the xtables lock in it, /run/xtables.lock, is private, so whoever holds the host's cannot
//     delay a pod, and we delay nobody. (nscd's socket is out of reach too.)
//
// The rest of the host's files are the same. Nothing of it is visible to the host, and nothing is left behind.
func (n *NetNS) Sandbox() *Sandbox { return &Sandbox{ns: n} }

// Run is [NetNS.Run] in the sandbox. A command under /run is found through its symbolic links first (NixOS keeps its
// programs at /run/current-system); one that really lies there, or a cmd.Dir there, cannot be used.
//
// A root directory in cmd.SysProcAttr.Chroot is the sandbox's too: the files named above are those below it, and links
// lead where they lead for the command. One that is named PROC/PID/root stands for the mounts of that process, which are
// entered as nsenter does, because those of another mount namespace cannot be covered from ours: "/proc/1/root" is the
// host's root in a container that shares the host's processes. That needs CAP_SYS_CHROOT besides CAP_SYS_ADMIN, and
// CAP_SYS_PTRACE for /proc/1. cmd.Path is then a path below that root, and a nil cmd.Stdin, Stdout or Stderr is its /dev/null.
//
// Making the mount namespace needs CAP_SYS_ADMIN. Where that is refused, and the namespace is [Current] (an init
// container, which shares neither lock nor name services with the host), cmd runs without the sandbox. For a namespace
// got by [Open] it is an error that errors.Is(err, fs.ErrPermission), and nothing was run.
func (s *Sandbox) Run(cmd *exec.Cmd) error {
	setWaitDelay(cmd)
	var refused error
	err := onThread(func(t *thread) error {
		// The thread is never vouched for (t.clean): it cannot leave its mount namespace.
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
		// To wait here keeps the thread, and so the mount namespace, until after the process: whoever leaves last has
		// to take the mounts down, and nobody waits for this thread.
		return cmd.Run()
	})
	if s.ns.current && (errors.Is(refused, unix.EPERM) || errors.Is(refused, unix.EACCES)) {
		return s.ns.Run(cmd)
	}
	return err
}

// isolate gives the calling thread a mount namespace of its own as [NetNS.Sandbox] describes it, and the root that attr
// asks for. It returns the path of the program and the attributes as they have to be from there.
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
	inside.Chroot = "" // the thread is there already, and what it starts
	null, err := enterRoot(attr.Chroot)
	if err == nil {
		path, err = outsideRun(path)
	}
	if err == nil {
		err = hide(null)
	}
	if err == nil {
		err = unix.Chdir("/") // the process is to start there, and not outside of its root
	}
	return path, &inside, err
}

// ownMounts gives the calling thread a mount namespace of its own whose changes nobody sees.
func ownMounts() error {
	// CLONE_FS: Go's threads share one fs_struct (root, working directory), and a thread that shares it may not change
	// its mount namespace (setns(2), unshare(2) of CLONE_NEWNS implies it; said here to be plain).
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// Before any mount: with shared propagation, systemd's default, the host would get each of ours.
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

// outsideRun is path, or where its symbolic links lead when it is below the /run that the sandbox hides.
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
