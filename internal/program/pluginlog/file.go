package pluginlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// rotated is a log file shared with other processes.
type rotated struct {
	path     string
	maxBytes int64
	keep     int

	file *os.File
	stat unix.Stat_t // of file, when it was opened: device and inode
	torn bool        // the file ends inside a line
}

// write appends the record in one write. It waits for no one: while another process rotates, the record goes to the file
// that is being renamed.
func (r *rotated) write(record []byte) error {
	if err := r.ready(); err != nil {
		return err
	}
	if r.torn {
		// An earlier write stopped short, on a full disk for instance: end its line, so that this record is whole.
		record = append([]byte{'\n'}, record...)
	}
	n, err := r.file.Write(record)
	if err != nil {
		r.torn = r.torn && n == 0 || n > 0 && record[n-1] != '\n'
		return fmt.Errorf("append to log file: %w", err)
	}
	r.torn = false
	return nil
}

func (r *rotated) prepare() { _ = r.ready() } // if it fails, write finds out too

// ready leaves r.file open on what the path names now, with room for a record.
func (r *rotated) ready() error {
	// Each round ends or follows another process's rotation. With a tiny maxBytes and many processes those could go on for
	// ever; a file that is a little too large is better than a plugin that spins.
	for range 8 {
		if r.file == nil {
			if err := r.open(); err != nil {
				return err
			}
		}
		var now unix.Stat_t
		if err := unix.Stat(r.path, &now); err != nil || now.Dev != r.stat.Dev || now.Ino != r.stat.Ino {
			r.close() // rotated or removed since
			continue
		}
		if now.Size < r.maxBytes {
			return nil
		}
		if !r.rotate() {
			break
		}
	}
	if r.file == nil {
		return r.open()
	}
	return nil
}

func (r *rotated) open() error {
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	// O_NOFOLLOW keeps root from being led to another file, O_NONBLOCK from waiting on a FIFO. endsInLine reads.
	fd, err := unix.Open(r.path, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return &fs.PathError{Op: "open log file", Path: r.path, Err: err}
	}
	file := os.NewFile(uintptr(fd), r.path)
	var stat unix.Stat_t
	err = unix.Fstat(fd, &stat)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("it is no regular file")
	}
	if err == nil && stat.Mode&0o777 != 0o600 {
		err = unix.Fchmod(fd, 0o600) // something else made it, and pods' names are private
	}
	if err != nil {
		_ = file.Close()
		return &fs.PathError{Op: "open log file", Path: r.path, Err: err}
	}
	r.file, r.stat, r.torn = file, stat, false
	r.torn = endsInLine(file, stat.Size)
	return nil
}

// endsInLine reports that the file's last byte is not a newline. Another process's write may be half visible, since the
// kernel grows a file page by page, so a file that has grown since is looked at again. A wrong guess costs an empty line.
func endsInLine(file *os.File, size int64) bool {
	for range 8 {
		var last [1]byte
		if size == 0 {
			return false
		}
		if _, err := file.ReadAt(last[:], size-1); err != nil || last[0] == '\n' {
			return false
		}
		now, err := file.Stat()
		if err != nil || now.Size() == size {
			return true
		}
		size = now.Size()
	}
	return false
}

// rotate moves the file aside, or finds that another process has. It returns false if the present file has to do: another
// process is rotating it, or it cannot be moved.
//
// The lock is on the log file itself, so that it leaves nothing behind and ends with its holder. A process that gets the
// lock after the winner's rename must not move the new file, so the path is looked at again under the lock. The log file is
// renamed last, so that nobody finds a new one, and locks that, while the older ones are still moving.
func (r *rotated) rotate() bool {
	fd := int(r.file.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	defer r.close() // and with it the lock
	var now unix.Stat_t
	if unix.Stat(r.path, &now) != nil || now.Ino != r.stat.Ino || now.Dev != r.stat.Dev {
		return true
	}
	for i := r.keep - 1; i >= 1; i-- {
		_ = os.Rename(r.numbered(i), r.numbered(i+1)) // most often there is none yet
	}
	return os.Rename(r.path, r.numbered(1)) == nil
}

func (r *rotated) numbered(i int) string { return r.path + "." + strconv.Itoa(i) }

func (r *rotated) close() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}
