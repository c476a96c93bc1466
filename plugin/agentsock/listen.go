package agentsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// lookAgain is how often the socket's file is looked at: who empties run_dir finds the socket there again soon.
const lookAgain = time.Second

// maxPath is the longest path of a Unix socket, in bytes: sockaddr_un.sun_path without its final zero (unix(7)).
const maxPath = 107

// own listens at the path until the context ends, and has each listener served. drained is called when none is left.
func own(ctx context.Context, path string, serve func(*net.UnixListener), drained func()) error {
	var serving sync.WaitGroup
	defer func() {
		serving.Wait()
		drained()
	}()
	var held *socket
	defer func() { held.close() }()
	for {
		if !held.holds(path) {
			next, err := listen(path)
			if err != nil && held == nil {
				return err
			}
			if err == nil {
				held.close()
				held = next
				serving.Go(func() { serve(next.listener) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgain):
		}
	}
}

// socket is a listening socket and its file.
type socket struct {
	listener *net.UnixListener
	path     string
	file     os.FileInfo
}

// listen makes a socket under another name and gives it its mode there, so that it is never open to others and replaces
// another's at once.
func listen(path string) (s *socket, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen on %s: %w", path, err)
		}
	}()
	dir, name := filepath.Split(path)
	sweep(dir, "."+name+".")
	tmp := dir + "." + name + "." + strconv.FormatUint(uint64(rand.Uint32()), 36)
	if len(tmp) > maxPath {
		return nil, fmt.Errorf("its path and a suffix have %d bytes, and a socket's may have %d", len(tmp), maxPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o755); err == nil {
			l, err = net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
		}
	}
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name may be another's by then
	s = &socket{listener: l, path: path}
	if err = os.Chmod(tmp, 0o600); err == nil {
		s.file, err = os.Lstat(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = l.Close()
		return nil, errors.Join(err, os.Remove(tmp))
	}
	return s, nil
}

// sweep removes the files of those who were killed before they renamed them: nobody listens there.
func sweep(dir, prefix string) {
	left, _ := filepath.Glob(filepath.Join(dir, prefix+"*"))
	for _, file := range left {
		if dead(file) {
			_ = os.Remove(file)
		}
	}
}

// dead reports whether nobody listens on the socket, as its killed owner leaves it.
func dead(path string) bool {
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// holds reports whether there is nothing to do: the path names this socket, or one of somebody newer who listens.
func (s *socket) holds(path string) bool {
	if s == nil {
		return false
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil || os.SameFile(info, s.file):
		return true // what cannot be read cannot be replaced either
	}
	return !dead(path)
}

// close stops listening, and removes the file if it is still this socket's.
func (s *socket) close() {
	if s == nil {
		return
	}
	if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.file) {
		_ = os.Remove(s.path)
	}
	_ = s.listener.Close()
}
