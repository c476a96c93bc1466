//go:build linux

package diskfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// temp is a temporary file. Errors name its target: its own name is random, so that no error would ever repeat an earlier one.
type temp struct {
	*os.File

	target string
}

// newTemp makes the temporary file of a target. The tag, from [tag] or empty, is for [RemoveTemp].
func newTemp(target, tag string) (*temp, error) {
	dir, base := filepath.Split(target)
	f, err := os.CreateTemp(dir, "."+base+TempMark+tag+"*")
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", target, Cause(err))
	}
	t := &temp{f, target}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.discard()
		return nil, fmt.Errorf("locking the new %s: %w", target, err)
	}
	return t, nil
}

// discard removes the temporary name: nothing after a rename, the displaced file after an exchange.
func (t *temp) discard() {
	_ = os.Remove(t.Name())
	_ = t.Close()
}

// fill writes and syncs. A zero mode keeps the file's.
func (t *temp) fill(src io.Reader, mode fs.FileMode) error {
	err := inPieces(t.File, src)
	if err == nil && mode != 0 {
		err = t.Chmod(mode)
	}
	if err == nil {
		err = t.Sync()
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", t.target, Cause(err))
	}
	return nil
}

// piece is how many bytes of a file are written at once. The kernel caches what is written in pieces as large as the write, and maps a
// program by them: from those of io.Copy, of a few pages, the plugin starts a tenth slower, at each ADD until the node boots again.
const piece = 256 << 10

// inPieces copies another file, such as a program, in large pieces. What is in memory anyway is written at once.
func inPieces(w io.Writer, src io.Reader) error {
	if f, ok := src.(*os.File); ok {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{f}, make([]byte, piece))
		return err
	}
	_, err := io.Copy(w, src)
	return err
}

// dressLike copies owner, mode and extended attributes (SELinux label, ACL and others). The owner comes last: as long as the
// file is ours, the rest needs no capability.
func (t *temp) dressLike(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("reading the owner of %s: %w", path, err)
	}
	fd := int(t.Fd())
	for _, name := range listXattrs(path) {
		if err := copyXattr(fd, path, name); err != nil {
			return fmt.Errorf("giving %s its attribute %s: %w", path, name, err)
		}
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return fmt.Errorf("giving %s its mode: %w", path, err)
	}
	if int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
		if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("giving %s its owner %d:%d, which takes CAP_CHOWN: %w", path, st.Uid, st.Gid, err)
		}
	}
	return nil
}

// copyXattr copies one attribute of a file. Setting a label without its security module takes CAP_SYS_ADMIN (EPERM; a module
// would refuse with EACCES). A label left behind by a disabled SELinux is not worth a failure.
func copyXattr(fd int, path, name string) error {
	value, has := make([]byte, 64<<10), make([]byte, 64<<10) // XATTR_SIZE_MAX of the kernel
	n, err := unix.Getxattr(path, name, value)
	if err == nil {
		if m, err := unix.Fgetxattr(fd, name, has); err == nil && bytes.Equal(value[:n], has[:m]) {
			return nil // as the directory's default label
		}
		err = unix.Fsetxattr(fd, name, value[:n], 0)
	}
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EPERM) && strings.HasPrefix(name, "security.") {
		return nil
	}
	return err
}

func listXattrs(path string) []string {
	buf := make([]byte, 64<<10)
	n, err := unix.Listxattr(path, buf)
	if err != nil {
		return nil // the file system has none
	}
	return strings.FieldsFunc(string(buf[:n]), func(r rune) bool { return r == 0 })
}

// tag identifies the content that a temporary file is to replace, and its own.
func tag(old, data []byte) string { return sum(old) + "-" + sum(data) + "-" }

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:8])
}

// RemoveTemp removes what a killed process left at path. If that is neither what the process was to write nor what it was to
// replace, the process was killed between an exchange and its undoing: somebody else's file is there, and goes back if what
// the process wrote is still in its place.
func RemoveTemp(path string) error {
	dir, name := filepath.Split(path)
	base, tagged, _ := strings.Cut(strings.TrimPrefix(name, "."), TempMark)
	target := filepath.Join(dir, base)
	if parts := strings.Split(tagged, "-"); len(parts) == 3 {
		taken, err := os.ReadFile(path)
		now, nowErr := os.ReadFile(target)
		if err == nil && nowErr == nil && sum(taken) != parts[0] && sum(taken) != parts[1] && sum(now) == parts[1] {
			if err := os.Rename(path, target); err != nil {
				return fmt.Errorf("giving %s back: %w", target, Cause(err))
			}
			return syncDir(dir)
		}
	}
	return Delete(path)
}

// Stale returns the temporary files in dir that no running process holds.
func Stale(dir string) []string {
	entries, _ := os.ReadDir(dir) // one that cannot be read is reported by whoever needs it
	var out []string
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); IsTemp(e.Name()) && e.Type().IsRegular() && abandoned(path) {
			out = append(out, path)
		}
	}
	return out
}

func abandoned(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing %s: %w", dir, Cause(err))
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("syncing %s: %w", dir, Cause(err))
	}
	return nil
}

// turn bounds the wait for other writers of this package, which take milliseconds each.
const turn = 10 * time.Second

// lockDir admits one writer of this package to dir at a time. The lock is on the directory itself, so it leaves nothing behind
// and ends with its holder. A file system without locks has none.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", dir, Cause(err))
	}
	for deadline := time.Now().Add(turn); ; time.Sleep(time.Millisecond) {
		switch err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil, errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOLCK):
			return func() { _ = d.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			_ = d.Close()
			return nil, fmt.Errorf("locking %s: %w", dir, err)
		case time.Now().After(deadline):
			_ = d.Close()
			return nil, fmt.Errorf("locking %s: another writer has held it for %s", dir, turn)
		}
	}
}
