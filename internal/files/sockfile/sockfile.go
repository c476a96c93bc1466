// Package sockfile listens on Unix sockets at paths that belong to whoever came last: a newer server takes the place of an older one
// without a moment in between, and the older one takes it back if the newer is killed.
package sockfile

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
	"syscall"

	"golang.org/x/sys/unix"
)

// maxPath is the longest path of a Unix socket, in bytes: sockaddr_un.sun_path without its final zero (unix(7)).
const maxPath = 107

// Listener is a listening socket, and the file by which clients find it.
type Listener struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// Listen puts a new socket in the place of whatever socket is at the path, and makes the directory. A server that listens there keeps
// the connections that it has; new ones are ours. The file is never absent in between, and never there with other rights than 0600.
// What is there and is no socket is an error. The network is one of net's, such as "unix".
func Listen(ctx context.Context, network, path string) (l *Listener, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen on %s: %w", path, err)
		}
	}()
	dir, name := filepath.Split(path)
	// Another server that starts at the same time has another name.
	beside := dir + "." + name + "." + strconv.FormatUint(uint64(rand.Uint32()), 36)
	if len(beside) > maxPath {
		return nil, fmt.Errorf("its path and a suffix have %d bytes, and a socket's may have %d", len(beside), maxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // others may look; the socket is 0600
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("it is there and is no socket (%s)", info.Mode())
	}
	sweep(dir, "."+name+".")
	// The file that bind makes gets the mode of the socket.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	socket, err := config.Listen(ctx, network, beside)
	if err != nil {
		return nil, err
	}
	l = &Listener{UnixListener: socket.(*net.UnixListener), path: path} //nolint:forcetypeassert // that is what net returns for these networks
	l.SetUnlinkOnClose(false)                                           // another's may be there by then
	if l.file, err = os.Lstat(beside); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(beside), l.Close())
	}
	return l, nil
}

// sweep removes the files of those who were killed before they renamed them.
func sweep(dir, prefix string) {
	left, _ := filepath.Glob(filepath.Join(dir, prefix+"*"))
	for _, file := range left {
		if dead(file) {
			_ = os.Remove(file)
		}
	}
}

// dead reports whether a socket's file has no socket any more, as its killed owner leaves it. The owner of one that has is not
// disturbed: nobody's socket here is of the type that asks.
func dead(path string) bool {
	conn, err := net.Dial("unixgram", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// Owner is whose socket is at a listener's path.
type Owner int

// The owners.
const (
	Ours    Owner = iota // or it cannot be read, and then not be replaced either
	Another              // somebody newer, who runs
	Nobody               // there is no file, or its owner was killed: listen again
)

// Owner says whose socket is at the path now.
func (l *Listener) Owner() Owner {
	switch info, err := os.Lstat(l.path); {
	case errors.Is(err, fs.ErrNotExist):
		return Nobody
	case err != nil || os.SameFile(info, l.file):
		return Ours
	case info.Mode().Type() == fs.ModeSocket && dead(l.path):
		return Nobody
	}
	return Another
}

// Withdraw closes the socket, and removes its file if it is still ours.
func (l *Listener) Withdraw() error {
	var err error
	if l.Owner() == Ours {
		if err = os.Remove(l.path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, l.Close())
}

// Peer returns who is at the other end of a connection, as the kernel noted it when they connected.
func Peer(c *net.UnixConn) (unix.Ucred, error) {
	var cred *unix.Ucred
	var failed error
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	}
	if err = errors.Join(err, failed); err != nil {
		return unix.Ucred{}, fmt.Errorf("ask who connected: %w", err)
	}
	return *cred, nil
}
