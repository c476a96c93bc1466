package netnsexec

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// SyscallConn gives others the file descriptor for as long as they use it: Control keeps Close waiting, so the number cannot
// come to mean another file meanwhile. After Close, Control returns an error that errors.Is(err, os.ErrClosed). Read and
// Write are not supported.
func (n *NetNS) SyscallConn() (syscall.RawConn, error) { return rawConn{n}, nil }

type rawConn struct{ ns *NetNS }

// Control implements [syscall.RawConn].
func (c rawConn) Control(f func(fd uintptr)) error {
	c.ns.mu.RLock()
	defer c.ns.mu.RUnlock()
	if c.ns.fd < 0 {
		return fmt.Errorf("use network namespace %q: %w", c.ns.path, os.ErrClosed)
	}
	f(uintptr(c.ns.fd))
	return nil
}

// Read implements [syscall.RawConn].
func (rawConn) Read(func(uintptr) bool) error { return errors.ErrUnsupported }

// Write implements [syscall.RawConn].
func (rawConn) Write(func(uintptr) bool) error { return errors.ErrUnsupported }
