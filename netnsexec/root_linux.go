package netnsexec

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// AtRoot runs fn on a thread whose root directory is root, and returns fn's error, as [NetNS.Do] does. What fn opens stays open
// for any thread. A root named PROC/PID/root means the mounts of that process: "/proc/1/root" is the host's root in a container
// that shares the host's processes, and a mount that fn makes there outlives the container. An empty root or "/" is our own,
// and fn then runs on the calling thread.
//
// It needs CAP_SYS_CHROOT, and for the mounts of a process CAP_SYS_ADMIN and CAP_SYS_PTRACE. If the root cannot be entered,
// fn has not run, and errors.Is(err, netnsexec.ErrRoot).
func AtRoot(root string, fn func() error) error {
	if root == "" || root == "/" {
		return fn()
	}
	_, _ = own()                          // it is remembered, and the root may have no /proc
	return onThread(func(*thread) error { // never clean: the thread cannot get its shared root directory back
		if err := joinRoot(root); err != nil {
			return fmt.Errorf("%w %s: %w", ErrRoot, root, err)
		}
		return fn()
	})
}

// joinRoot moves the calling thread to a root, into the mounts there.
func joinRoot(root string) error {
	mounts, err := mountsOf(root)
	if err != nil {
		return err
	}
	if mounts >= 0 {
		defer func() { _ = unix.Close(mounts) }()
		return joinProcess(root, mounts)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the shared working directory: %w", err)
	}
	if err := chroot(root); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// enterRoot puts the calling thread into a private mount namespace with the directory as its root. It returns a path of the
// null device, since the directory's /dev may be empty.
func enterRoot(root string) (null string, err error) {
	mounts, err := mountsOf(root)
	if err != nil {
		return "", err
	}
	if mounts < 0 {
		return enterDirectory(root)
	}
	defer func() { _ = unix.Close(mounts) }()
	return enterProcess(root, mounts)
}

// mountsOf opens the mount namespace of a root named PROC/PID/root; -1 for any other directory.
func mountsOf(root string) (fd int, err error) {
	if filepath.Base(root) != "root" {
		return -1, nil
	}
	path := filepath.Join(filepath.Dir(root), "ns", "mnt")
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return -1, nil // a directory that happens to be called so
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return -1, unix.Close(fd)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNS {
		return -1, unix.Close(fd)
	}
	return fd, nil
}

// enterDirectory makes a directory in our own mounts the root.
func enterDirectory(root string) (null string, err error) {
	if err := ownMounts(); err != nil {
		return "", err
	}
	// chroot(2) keeps the working directory, so the null device can be found from there.
	if err := unix.Chdir("/dev"); err != nil {
		return "", fmt.Errorf("find the null device: %w", err)
	}
	return "null", chroot(root)
}

// enterProcess enters a copy of the mounts of the process that root, PROC/PID/root, belongs to.
func enterProcess(root string, mounts int) (null string, err error) {
	if err := joinProcess(root, mounts); err != nil {
		return "", err
	}
	return "/dev/null", ownMounts()
}

// joinProcess enters the mounts and the root of the process that root, PROC/PID/root, belongs to.
func joinProcess(root string, mounts int) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open root %s: %w", root, err)
	}
	defer func() { _ = unix.Close(dir) }()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the shared working directory: %w", err)
	}
	if err := unix.Setns(mounts, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace of %s: %w", root, err)
	}
	// Chroot before the mounts are copied: the copy moves the thread's root and working directory along, but not its
	// descriptors.
	if err := unix.Fchdir(dir); err != nil {
		return fmt.Errorf("enter root %s: %w", root, err)
	}
	return chroot(".")
}

func chroot(root string) error {
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("make %s the root: %w", root, err)
	}
	return nil
}
