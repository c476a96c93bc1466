//go:build linux

// Package diskfile changes files so that a reader, a kill -9 and a power cut find either the old file or the new one, whole,
// and so that what somebody else wrote meanwhile is not lost. The libraries for atomic writes (google/renameio,
// natefinch/atomic) rename only: they keep neither owner nor attributes, and do not notice another writer.
//
// A write goes to a temporary file beside its target, with the target's mode, owner and extended attributes (hence the SELinux
// label). It is synced and takes the target's place in one step; then the directory is synced. No container runtime looks at
// the temporary names. The files are locked while in use, so that [Stale] finds those of killed processes.
//
// Errors: errors.Is(err, ErrChanged) if the file is not what the caller had read: read it again and start over. Others wrap
// the system's, as in errors.Is(err, syscall.ENOSPC); the target is then unchanged.
package diskfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrChanged is the error when somebody else has changed the file since the caller read it.
var ErrChanged = errors.New("the file changed meanwhile")

// TempMark is in the names of temporary files, of every product: any of them knows what another's killed process left.
const TempMark = ".cni-tmp-"

// IsTemp reports whether a file name is that of a temporary file of this package.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, TempMark)
}

// Write writes data to path, whatever is there, with exactly that mode.
func Write(path string, data []byte, mode fs.FileMode) error {
	return WriteFrom(path, bytes.NewReader(data), mode)
}

// WriteFrom is [Write] for content too large for memory. A program that is running keeps its inode, so it can be replaced.
func WriteFrom(path string, src io.Reader, mode fs.FileMode) error {
	t, err := newTemp(path, "")
	if err != nil {
		return err
	}
	defer t.discard()
	if err := t.fill(src, mode); err != nil {
		return err
	}
	// Closed first: a program that is open for writing cannot be executed (ETXTBSY).
	if err := t.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", path, Cause(err))
	}
	if err := os.Rename(t.Name(), path); err != nil {
		return changedIfGone(fmt.Errorf("putting %s in place: %w", path, Cause(err)))
	}
	return syncDir(filepath.Dir(path))
}

// Create writes data to path, which must not exist (otherwise ErrChanged), with the mode, owner and attributes of the file
// like, or with mode 0600 if like is empty.
func Create(path string, data []byte, like string) error {
	t, err := withRoom(path, "", len(data), func(t *temp) (err error) {
		if like != "" {
			err = t.dressLike(like)
		}
		if err == nil {
			err = t.fill(bytes.NewReader(data), 0)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer t.discard()
	return MoveNew(t.Name(), path)
}

// Replace changes the content of path from old to data. If path is a symbolic link, the file to which it leads is replaced.
//
// The new file and the present one are exchanged in one step, and what came out is compared with old. If somebody else wrote in
// between, the exchange is undone: by this process or, if that is killed right then, by [RemoveTemp]. On a file system
// without exchange, the comparison is just before the rename. Writers of this package take turns: otherwise one could read
// between another's exchange and its undoing, and build on what is about to go.
func Replace(path string, old, data []byte) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return changedIfGone(err)
	}
	t, err := withRoom(real, tag(old, data), len(data), func(t *temp) error {
		if err := t.dressLike(real); err != nil {
			return changedIfGone(err)
		}
		return t.fill(bytes.NewReader(data), 0)
	})
	if err != nil {
		return err
	}
	defer t.discard()
	unlock, err := lockDir(filepath.Dir(real))
	if err != nil {
		return err
	}
	defer unlock()
	if err := same(real, old); err != nil {
		return err
	}
	switch err := exchange(t.Name(), real); {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		if err := os.Rename(t.Name(), real); err != nil {
			return fmt.Errorf("putting %s in place: %w", real, Cause(err))
		}
	case err != nil:
		return changedIfGone(fmt.Errorf("putting %s in place: %w", real, err))
	default:
		if err := same(t.Name(), old); err != nil {
			t.giveBack(real, data)
			return fmt.Errorf("replacing %s: %w", path, ErrChanged)
		}
	}
	return syncDir(filepath.Dir(real))
}

// giveBack undoes an exchange. If what comes out is not ours, somebody wrote yet again, and the newest goes back.
func (t *temp) giveBack(target string, ours []byte) {
	for range 8 {
		in, err := os.ReadFile(t.Name())
		if err != nil || exchange(t.Name(), target) != nil || same(t.Name(), ours) == nil {
			return
		}
		ours = in
	}
}

// Remove removes path if its content is old.
func Remove(path string, old []byte) error {
	if err := same(path, old); err != nil {
		return err
	}
	return Delete(path)
}

// Delete removes path, whatever its content. It is no error if there is nothing.
func Delete(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", path, Cause(err))
	}
	return syncDir(filepath.Dir(path))
}

// Move renames the file from, whose content is old, to another name in its directory, replacing what is there. If the content
// turns out to be another, the file goes back, unless a newer one has taken its place.
func Move(from, to string, old []byte) error {
	if err := same(from, old); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return changedIfGone(fmt.Errorf("moving %s to %s: %w", from, to, Cause(err)))
	}
	if same(to, old) != nil {
		_ = moveNew(to, from)
		return fmt.Errorf("moving %s: %w", from, ErrChanged)
	}
	return syncDir(filepath.Dir(to))
}

// MoveNew is [Move] to a name that does not exist (otherwise ErrChanged), whatever the content.
func MoveNew(from, to string) error {
	if err := moveNew(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

func moveNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		if err = unix.Link(from, to); err == nil {
			err = unix.Unlink(from)
		}
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("creating %s: %w", to, ErrChanged)
	case err != nil:
		return changedIfGone(fmt.Errorf("creating %s: %w", to, err))
	}
	return nil
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func same(path string, want []byte) error {
	got, err := os.ReadFile(path)
	if err != nil {
		return changedIfGone(err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: %w", path, ErrChanged)
	}
	return nil
}

func changedIfGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// Cause strips the paths from an error of package os, because the caller's sentence names the target: a temporary file's random
// name would make each error a new one.
func Cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
