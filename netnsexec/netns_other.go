//go:build !linux

package netnsexec

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

var errPlatform = fmt.Errorf("network namespaces need Linux, this is %s: %w", runtime.GOOS, errors.ErrUnsupported)

// NetNS is an open network namespace; there are none on this platform.
type NetNS struct{}

// Open returns an error that errors.Is(err, errors.ErrUnsupported).
func Open(path string) (*NetNS, error) {
	return nil, fmt.Errorf("open network namespace %q: %w", path, errPlatform)
}

// FromFile returns an error that errors.Is(err, errors.ErrUnsupported).
func FromFile(_ syscall.Conn, path string) (*NetNS, error) {
	return nil, fmt.Errorf("take over network namespace %q: %w", path, errPlatform)
}

// AtRoot returns an error that errors.Is(err, errors.ErrUnsupported), unless the root is our own.
func AtRoot(root string, fn func() error) error {
	if root == "" || root == "/" {
		return fn()
	}
	return fmt.Errorf("%w %s: %w", ErrRoot, root, errPlatform)
}

// OpenHost fails.
func OpenHost(path string) (*NetNS, error) {
	return nil, fmt.Errorf("open the host's network namespace %q: %w", path, errPlatform)
}

// New returns an error that errors.Is(err, errors.ErrUnsupported).
func New() (*NetNS, error) {
	return nil, fmt.Errorf("make a network namespace: %w", errPlatform)
}

// Current returns an error that errors.Is(err, errors.ErrUnsupported).
func Current() (*NetNS, error) {
	return nil, fmt.Errorf("open own network namespace: %w", errPlatform)
}

// Do returns an error that errors.Is(err, errors.ErrUnsupported).
func (n *NetNS) Do(func() error) error { return errPlatform }

// Run returns an error that errors.Is(err, errors.ErrUnsupported).
func (n *NetNS) Run(*exec.Cmd) error { return errPlatform }

// Socket returns an error that errors.Is(err, errors.ErrUnsupported).
func (n *NetNS) Socket(domain, typ, proto int) (fd int, err error) { return -1, errPlatform }

// SyscallConn returns an error that errors.Is(err, errors.ErrUnsupported).
func (n *NetNS) SyscallConn() (syscall.RawConn, error) { return nil, errPlatform }

// Fd is -1.
func (n *NetNS) Fd() int { return -1 }

// Path is empty.
func (n *NetNS) Path() string { return "" }

// ID is the zero ID.
func (n *NetNS) ID() ID { return ID{} }

// Close does nothing.
func (n *NetNS) Close() error { return nil }

// Sandbox runs commands in a private mount namespace; there are none on this platform.
type Sandbox struct{}

// Sandbox gives a runner whose Run returns an error that errors.Is(err, errors.ErrUnsupported).
func (n *NetNS) Sandbox() *Sandbox { return &Sandbox{} }

// Run returns an error that errors.Is(err, errors.ErrUnsupported).
func (s *Sandbox) Run(*exec.Cmd) error { return errPlatform }
