//go:build linux

// Package diskfile changes files so that a reader, a kill -9 and a power cut see either the old or the new one, whole, and
// so that what somebody else wrote in the meantime is not lost.
//
// A write goes to a temporary file beside its target (with the target's mode, owner and extended attributes, hence the
// SELinux label), is synced, takes the target's place in one step, and the directory is synced. Temporary names end in none
// of the extensions a container runtime looks for. While in use they are locked, so [Stale] can tell those of a
// killed process from those of a live one.
//
// Errors: errors.Is(err, ErrChanged) when the file is not what the caller had seen: look again and start over. Others wrap
// the system's, so errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOSPC) and so on hold; the target is then
// unchanged.
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

	"golang.org/x/sys/unix"
)

// ErrChanged: somebody else has changed the file since the caller read it.
var ErrChanged = errors.New("the file changed meanwhile")

const tempMark = ".meshcni-tmp-"

// IsTemp tells whether a file's name is that of a temporary file of this package.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, tempMark)
}

// Write puts data at path, whatever is there, as a file of exactly that mode.
func Write(path string, data []byte, mode fs.FileMode) error {
	return WriteFrom(path, bytes.NewReader(data), mode)
}

// WriteFrom is [Write] for content too large to hold. A program that is being executed can be replaced: it keeps its inode.
func WriteFrom(path string, src io.Reader, mode fs.FileMode) error {
	t, err := newTemp(path, "")
	if err != nil {
		return err
	}
	defer t.discard()
	if err := t.fill(src, mode); err != nil {
		return err
	}
	// Closed first: a program that somebody holds open for writing cannot be executed (ETXTBSY).
	if err := t.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", path, cause(err))
	}
	if err := os.Rename(t.Name(), path); err != nil {
		return changedIfGone(fmt.Errorf("putting %s in place: %w", path, cause(err)))
	}
	return syncDir(filepath.Dir(path))
}

// Create puts data at path, where nothing may be (else ErrChanged), with the mode, owner and attributes of the file like,
// or with 0600 when like is empty.
func Create(path string, data []byte, like string) error {
	t, err := newTemp(path, "")
	if err != nil {
		return err
	}
	defer t.discard()
	if like != "" {
		err = t.dressLike(like)
	}
	if err == nil {
		err = t.fill(bytes.NewReader(data), 0)
	}
	if err != nil {
		return err
	}
	if err := moveNew(t.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// Replace changes the content of path from old to data. A symbolic link stays one: its target is replaced.
//
// The new file and the one found are exchanged in one step, and what came out is compared with old: when somebody else
// wrote in between, the exchange is undone, by this process or, when it is killed right then, by who clears up after it
// with [RemoveTemp]. Where the file system has no exchange, the comparison is just before the rename.
// Writers of this package take turns: one that reads between another's exchange and its undoing would build on what is
// about to go.
func Replace(path string, old, data []byte) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return changedIfGone(err)
	}
	t, err := newTemp(real, tag(old, data))
	if err != nil {
		return err
	}
	defer t.discard()
	if err := t.dressLike(real); err != nil {
		return changedIfGone(err)
	}
	if err := t.fill(bytes.NewReader(data), 0); err != nil {
		return err
	}
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
		err = os.Rename(t.Name(), real)
		if err != nil {
			return fmt.Errorf("putting %s in place: %w", real, cause(err))
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

// giveBack undoes an exchange. What comes out should be ours; if not, somebody wrote yet again, and the newest goes back.
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

// Delete removes path whatever is in it; that it is gone already is no error.
func Delete(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", path, cause(err))
	}
	return syncDir(filepath.Dir(path))
}

// Move renames the file from, whose content is old, to another name in its directory, replacing what is there. When the
// content turns out to be another's, the file goes back, unless a newer one has taken its place.
func Move(from, to string, old []byte) error {
	if err := same(from, old); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return changedIfGone(fmt.Errorf("moving %s to %s: %w", from, to, cause(err)))
	}
	if same(to, old) != nil {
		_ = moveNew(to, from)
		return fmt.Errorf("moving %s: %w", from, ErrChanged)
	}
	return syncDir(filepath.Dir(to))
}

// MoveNew is [Move] to a name that nothing has (else ErrChanged).
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

// cause strips the paths that os puts into its errors: the caller's sentence names them already.
func cause(err error) error {
	var link *os.LinkError
	var path *fs.PathError
	switch {
	case errors.As(err, &link):
		return link.Err
	case errors.As(err, &path):
		return path.Err
	}
	return err
}
