//go:build linux

package diskfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	reserves = 3
	// reserveSize is the room in each, more than a network's list takes.
	reserveSize = 8 << 10
)

// ReservePaths returns the files that [Reserve] keeps in a directory for a product of that name.
func ReservePaths(dir, product string) (paths []string) {
	for i := range reserves {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf(".%s-reserve-%d", product, i+1)))
	}
	return paths
}

// Reserve keeps room for three files of 8 KiB in a directory, with the name of the product. [Create] and [Replace] take it when the file
// system or a quota is full: the temporary file is then one that has its blocks already, whichever product reserved it. It leaves a whole
// reserve alone.
func Reserve(dir, product string) error {
	for _, path := range ReservePaths(dir, product) {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() >= reserveSize {
			continue
		}
		if err := Write(path, reserved, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// reserved is the content of a reserve, by which it is known.
var reserved = bytes.Repeat([]byte{'\n'}, reserveSize)

func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// withRoom makes a temporary file by fill, out of the reserve if there is no room for another.
func withRoom(target, tag string, size int, fill func(*temp) error) (*temp, error) {
	t, err := newTemp(target, tag)
	if err == nil {
		if err = fill(t); err != nil {
			t.discard()
		}
	}
	if err == nil || !noRoom(err) || size > reserveSize {
		return t, err
	}
	entries, _ := os.ReadDir(filepath.Dir(target))
	for _, e := range entries {
		if is, _ := filepath.Match(".*-reserve-[1-9]", e.Name()); !is || !e.Type().IsRegular() {
			continue
		}
		t, errReserve := takeReserve(filepath.Join(filepath.Dir(target), e.Name()), target, tag)
		if errReserve != nil {
			continue
		}
		if errReserve = fill(t); errReserve == nil {
			errReserve = t.Truncate(int64(size))
		}
		if errReserve == nil {
			errReserve = t.Sync()
		}
		if errReserve == nil {
			return t, nil
		}
		t.discard()
	}
	return nil, err
}

// takeReserve turns a file of the reserve into the temporary file of a target.
func takeReserve(path, target, tag string) (*temp, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return nil, err
	}
	if there, err := io.ReadAll(io.LimitReader(f, reserveSize+1)); err != nil || !bytes.Equal(there, reserved) {
		return nil, fmt.Errorf("%s is no reserve: %w", path, cmp.Or(err, os.ErrInvalid))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	dir, base := filepath.Split(target)
	name := filepath.Join(dir, fmt.Sprintf(".%s%s%s%d%s", base, TempMark, tag, os.Getpid(), path[len(path)-1:]))
	if err := os.Rename(path, name); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &temp{os.NewFile(uintptr(fd), name), target}, nil // the lock is of the open file, which both share
}
