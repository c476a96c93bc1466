package podnetns

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// Groups implements [Proc].
func (p proc) Groups(fn func(Made) error) error {
	first, err := fs.ReadFile(p, "1/cgroup")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read control groups of process 1: %w", err)
	}
	look := func() error {
		h := hierarchies{root: p.root, own: map[string]int{}}
		defer h.close()
		return fn(h.made)
	}
	// A container's own control group namespace hides what is above its own group, and so which groups are the kubelet's.
	if !bytes.Contains(first, []byte(":/..")) {
		return look()
	}
	return inGroups(filepath.Join(p.root, "1/ns/cgroup"), look)
}

// inGroups calls fn on a thread in a control group namespace, which is that of the reader of a file in /proc.
func inGroups(path string, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/cgroup")
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = home.Close() }()
		if err = enter(path); err == nil {
			err = fn()
		}
		// A thread that cannot be moved back ends with this.
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWCGROUP) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func enter(path string) error {
	f, err := os.Open(path)
	if err == nil {
		err = unix.Setns(int(f.Fd()), unix.CLONE_NEWCGROUP)
		err = cmp.Or(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("see the node's control groups: %w", err)
	}
	return nil
}

// hierarchies are the file systems of control groups.
type hierarchies struct {
	root   string         // of a proc file system
	mounts []mount        // nil: not read yet
	own    map[string]int // descriptors of those that we mounted, by controllers
}

// mount is a mounted hierarchy, and the group that is at its root.
type mount struct{ at, group, kind, options string }

// made implements [Made]: each directory above the group is root's too, and nobody else may write there.
func (h *hierarchies) made(controllers, dir string) error {
	if h.mounts == nil {
		h.mounts = []mount{}
		for _, process := range []string{"1", "self"} { // where the mounts of process 1 are not ours to see, our own have to do
			h.read(process)
		}
	}
	var err error
	for _, m := range h.mounts {
		rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(m.group, "/"))
		if !ok || !m.has(controllers) || rest != "" && rest[0] != '/' {
			continue
		}
		if err = rootsAlone(m.at, rest); !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	fd, ownErr := h.mount(controllers)
	if ownErr != nil {
		return fmt.Errorf("control group %s: no file system shows whose it is: %w", dir, errors.Join(err, ownErr))
	}
	return rootsAlone(fmt.Sprintf("/proc/self/fd/%d", fd), dir)
}

// mount mounts a hierarchy where nobody sees it, with the group at its root that is the root of this thread's view. It needs CAP_SYS_ADMIN.
func (h *hierarchies) mount(controllers string) (fd int, err error) {
	if fd, done := h.own[controllers]; done {
		return fd, nil
	}
	kind := "cgroup"
	if controllers == "" {
		kind = "cgroup2"
	}
	made, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mount control groups: %w", err)
	}
	defer func() { _ = unix.Close(made) }()
	for c := range strings.SplitSeq(controllers, ",") {
		switch name, named := strings.CutPrefix(c, "name="); {
		case named:
			err = cmp.Or(err, unix.FsconfigSetFlag(made, "none"), unix.FsconfigSetString(made, "name", name))
		case c != "":
			err = cmp.Or(err, unix.FsconfigSetFlag(made, c))
		}
	}
	if err = cmp.Or(err, unix.FsconfigCreate(made)); err == nil {
		fd, err = unix.Fsmount(made, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	}
	if err != nil {
		return -1, fmt.Errorf("mount control groups: %w", err)
	}
	h.own[controllers] = fd
	return fd, nil
}

func (h *hierarchies) close() {
	for _, fd := range h.own {
		_ = unix.Close(fd)
	}
}

// read adds what a process has mounted.
func (h *hierarchies) read(process string) {
	text, err := os.ReadFile(filepath.Join(h.root, process, "mountinfo"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		about, kind, _ := strings.Cut(line, " - cgroup") // proc_pid_mountinfo(5)
		fields, what := strings.Fields(about), strings.Fields(kind)
		if len(fields) < 5 || len(what) < 2 {
			continue
		}
		version := "1"
		if strings.HasPrefix(kind, "2 ") {
			version = "2"
		}
		h.mounts = append(h.mounts, mount{filepath.Join(h.root, process, "root", fields[4]), fields[3], version, what[len(what)-1]})
	}
}

// has reports whether the mount is that of a hierarchy, which is that of version 2 if it names no controller.
func (m mount) has(controllers string) bool {
	if controllers == "" || m.kind == "2" {
		return controllers == "" && m.kind == "2"
	}
	has := strings.Split(m.options, ",")
	for c := range strings.SplitSeq(controllers, ",") {
		if !slices.Contains(has, c) {
			return false
		}
	}
	return true
}

// rootsAlone returns nil if a directory and all above it, up to a mounted file system, are root's, and nobody else may write there.
func rootsAlone(at, dir string) error {
	path := at
	for part := range strings.SplitSeq(dir, "/") {
		if part == ".." { // above the root of our view
			return fmt.Errorf("control group %s: %w", dir, errTenants)
		}
		path = filepath.Join(path, part)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); errors.Is(err, unix.ENAMETOOLONG) { // no kubelet's is
			return fmt.Errorf("control group %.100s…: %w", dir, errTenants)
		} else if err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		if st.Uid != 0 || st.Mode&0o022 != 0 {
			return fmt.Errorf("control group %s: %s is %w", dir, path, errTenants)
		}
	}
	return nil
}

// owned returns nil if a network namespace is owned by the host's user namespace, or, for a pod that has one of its own, by one that the
// host's made. A process in a pod may make further ones, which then own the network namespaces that it makes.
func (p proc) owned(ns *netnsexec.NetNS, ownUsers bool) error {
	hosts, err := p.users()
	if err != nil || hosts == nil {
		return err
	}
	owner, err := unix.IoctlRetInt(ns.Fd(), unix.NS_GET_USERNS)
	if errors.Is(err, unix.ENOTTY) { // before Linux 4.9
		return nil
	}
	for above := 0; err == nil; above++ {
		var st unix.Stat_t
		err = unix.Fstat(owner, &st)
		next := -1
		switch {
		case err != nil:
		case slices.Contains(hosts, netnsexec.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}): //nolint:unconvert // the types differ between architectures
			return unix.Close(owner)
		case above == 1 || !ownUsers:
			err = ErrUsers
		default:
			next, err = unix.IoctlRetInt(owner, unix.NS_GET_PARENT)
		}
		err = cmp.Or(err, unix.Close(owner))
		owner = next
	}
	if errors.Is(err, unix.EPERM) { // one that is neither ours nor below
		err = ErrUsers
	}
	return fmt.Errorf("%s: %w", ns.ID(), err)
}

// users returns the host's user namespace: that of process 1, and our own, as far as they can be seen. nil: the kernel has none.
func (p proc) users() (hosts []netnsexec.ID, err error) {
	for _, path := range []string{filepath.Join(p.root, "1/ns/user"), "/proc/self/ns/user"} {
		var st unix.Stat_t
		if err = unix.Stat(path, &st); err == nil {
			hosts = append(hosts, netnsexec.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}) //nolint:unconvert // the types differ between architectures
		}
	}
	if len(hosts) == 0 && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look at the host's user namespace: %w", err)
	}
	return hosts, nil
}
