package zds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// network is net's name for SOCK_SEQPACKET.
const network = "unixpacket"

// socket is the listening socket, and the file by which proxies find it.
type socket struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// listen puts a new socket in the place of whatever socket is at path. Another agent that listens there keeps the
// connections that it has; new ones are ours. The file is never absent in between, and never there with other rights.
func listen(ctx context.Context, path string) (s *socket, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen for proxies on %s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as the kubelet makes a hostPath; the socket is 0600
		return nil, err
	}
	beside := path + ".new"
	for _, at := range []string{path, beside} {
		switch info, err := os.Lstat(at); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case info.Mode().Type() != fs.ModeSocket:
			return nil, fmt.Errorf("%s is there and is no socket (%s)", at, info.Mode())
		}
	}
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an agent that was killed just here
		return nil, err
	}
	// The file that bind makes gets the mode of the socket.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	l, err := config.Listen(ctx, network, beside)
	if err != nil {
		return nil, err
	}
	s = &socket{UnixListener: l.(*net.UnixListener), path: path} //nolint:forcetypeassert // that is what net returns for this network
	s.SetUnlinkOnClose(false)                                    // another agent's may be there by then
	if s.file, err = os.Lstat(beside); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(beside), s.Close())
	}
	return s, nil
}

// owner tells whose socket is at the path now.
type owner int

const (
	ours owner = iota
	another
	nobody
)

func (s *socket) owner() owner {
	switch info, err := os.Lstat(s.path); {
	case errors.Is(err, fs.ErrNotExist):
		return nobody
	case err == nil && !os.SameFile(info, s.file):
		return another
	}
	return ours
}

// withdraw closes the socket, and removes its file if it is still ours.
func (s *socket) withdraw() error {
	var err error
	if s.owner() == ours {
		if err = os.Remove(s.path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, s.Close())
}

// peer returns who connected, and an error unless the UID is one of those allowed.
func peer(c *net.UnixConn, allowed []uint32) (unix.Ucred, error) {
	var cred *unix.Ucred
	var failed error
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	}
	if err = errors.Join(err, failed); err != nil {
		return unix.Ucred{}, fmt.Errorf("ask who connected: %w", err)
	}
	if !slices.Contains(allowed, cred.Uid) {
		return *cred, fmt.Errorf("process %d runs as UID %d, which is not allowed (%v is)", cred.Pid, cred.Uid, allowed)
	}
	return *cred, nil
}
