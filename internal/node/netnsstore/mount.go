//go:build linux

package netnsstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
)

// write makes an entry, in place of what is there. Its file comes last, in one step; without it, nothing is an entry.
func (j *journal) write(uid types.UID, ns *netnsexec.NetNS, text []byte) error {
	err := j.mount(uid, ns)
	if err == nil {
		if err = os.WriteFile(j.path(uid)+unwritten, text, 0o600); err == nil {
			err = os.Rename(j.path(uid)+unwritten, j.path(uid)+suffix)
		}
	}
	if err != nil {
		return errors.Join(err, j.remove(uid))
	}
	return nil
}

// mount mounts the namespace at the pod's path, unless it is there.
func (j *journal) mount(uid types.UID, ns *netnsexec.NetNS) error {
	there, err := netnsexec.Open(j.path(uid))
	if err == nil {
		same := there.ID() == ns.ID()
		if err = there.Close(); err != nil || same {
			return err
		}
	}
	// The entry's file first, which would otherwise speak of the mount to come.
	if err := removeFile(j.path(uid) + suffix); err != nil {
		return err
	}
	if err := j.mountPoint(uid); err != nil {
		return err
	}
	raw, err := ns.SyscallConn()
	if err != nil {
		return err
	}
	var errMount error
	err = raw.Control(func(fd uintptr) {
		errMount = unix.Mount("/proc/self/fd/"+strconv.Itoa(int(fd)), j.path(uid), "", unix.MS_BIND, "")
	})
	if errMount != nil {
		errMount = fmt.Errorf("mount %s at %s: %w", ns.ID(), j.path(uid), errMount)
	}
	return errors.Join(err, errMount)
}

// mountPoint makes the file to mount at, anew. What it has to make or to remove for that is there rarely.
func (j *journal) mountPoint(uid types.UID) error {
	create := func() error {
		f, err := os.OpenFile(j.path(uid), os.O_CREATE|os.O_EXCL, 0o400)
		if err != nil {
			return err
		}
		return f.Close()
	}
	err := create()
	switch {
	case errors.Is(err, fs.ErrExist):
		err = j.remove(uid)
	case errors.Is(err, fs.ErrNotExist):
		if err = os.MkdirAll(filepath.Dir(j.dir), 0o755); err == nil {
			err = os.Mkdir(j.dir, 0o700)
		}
	default:
		return err
	}
	if err != nil {
		return err
	}
	return create()
}

// remove removes an entry, or what there is of one; its file first. That nothing is there is no error.
func (j *journal) remove(uid types.UID) error {
	path := j.path(uid)
	var errs []error
	for _, name := range []string{path + suffix, path + unwritten} {
		errs = append(errs, removeFile(name))
	}
	// Several, if something mounted there once more; bounded, if something goes on doing so. Where we lack the right, the
	// file's removal decides: the kernel refuses it while a mount is in our sight, and detaches those in other containers.
	for range 16 {
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			break
		}
	}
	return errors.Join(append(errs, removeFile(path))...)
}

func removeFile(name string) error {
	err := os.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, there := os.Lstat(name); errors.Is(there, fs.ErrNotExist) {
		return nil // also on a file system on which nothing can be removed
	}
	return err
}

// RemoveJournal removes the whole journal of a run_dir, before the agent leaves the node for good. Of the options it needs
// RunDir and HostRoot. No store may use the journal. That there is none is no error.
func RemoveJournal(o Options) error {
	if o.RunDir == "" {
		return nil
	}
	j := journal{dir: filepath.Join(o.RunDir, dirName), root: o.HostRoot}
	err := j.at(func() error {
		uids, err := j.list()
		errs := []error{err}
		for _, uid := range uids {
			errs = append(errs, j.remove(uid))
		}
		return errors.Join(append(errs, removeFile(j.dir))...)
	})
	if err != nil {
		return fmt.Errorf("remove the journal of network namespaces: %w", err)
	}
	return nil
}
