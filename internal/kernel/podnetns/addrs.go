package podnetns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/meshcni/meshcni/netnsexec"
)

// Proc is a proc file system, with the network namespaces of its processes. Make one with [At].
type Proc interface {
	fs.FS
	// Has returns the addresses that the process's network namespace has. The error is [ErrChanged] if that is no longer the one
	// that was found, and [ErrUsers] if it cannot be the pod's, whatever its addresses.
	Has(ctx context.Context, f Found, pod Wanted) (Held, error)
	// Groups calls fn where the paths of control groups are the node's.
	Groups(fn func(Made) error) error
}

// Made returns nil if root alone could make a control group, given by the controllers of its hierarchy and its path.
type Made func(controllers, dir string) error

// errTenants: somebody else than root may make groups there.
var errTenants = errors.New("not root's alone")

// Held lists the addresses asked for that a namespace has.
type Held struct {
	// Missing are those that it does not have. Others are some that it has, and More says that they are not all.
	Missing, Others []netip.Addr
	More            bool
}

// String returns the others, for example "[10.244.1.5 10.244.1.6] and more".
func (h Held) String() string {
	if h.More {
		return fmt.Sprint(h.Others, " and more")
	}
	return fmt.Sprint(h.Others)
}

// maxNamed bounds the addresses that a finding names.
const maxNamed = 8

// Few returns addresses for an error: at most eight of them.
func Few(addrs []netip.Addr) string {
	if len(addrs) <= maxNamed {
		return fmt.Sprint(addrs)
	}
	return fmt.Sprintf("%v and %d more", addrs[:maxNamed], len(addrs)-maxNamed)
}

// At returns the proc file system that is mounted at the root, such as "/proc" or "/host/proc".
func At(root string) Proc { return proc{os.DirFS(root), root} }

type proc struct {
	fs.FS
	root string
}

func (p proc) ReadFile(name string) ([]byte, error)       { return fs.ReadFile(p.FS, name) }
func (p proc) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(p.FS, name) }
func (p proc) ReadLink(name string) (string, error)       { return fs.ReadLink(p.FS, name) }
func (p proc) Lstat(name string) (fs.FileInfo, error)     { return fs.Lstat(p.FS, name) }

// Has implements [Proc]. Files in /proc would not do: /proc/PID/net/fib_trie has each route of the namespace, of which the pod can
// make any number, and the kernel takes longer for each than for the one before.
func (p proc) Has(ctx context.Context, f Found, pod Wanted) (Held, error) {
	ns, err := netnsexec.Open(filepath.Join(p.root, f.Path()))
	if errors.Is(err, netnsexec.ErrGone) {
		return Held{}, ErrChanged
	}
	if err != nil {
		return Held{}, err
	}
	defer func() { _ = ns.Close() }()
	if ns.ID().String() != f.NetNS {
		return Held{}, ErrChanged
	}
	if err := p.owned(ns, pod.OwnUsers); err != nil || len(pod.Addrs) == 0 {
		return Held{}, err
	}
	return Has(ctx, ns, pod.Addrs)
}

// gone reports whether a process's file could not be read because the process has ended: ENOENT before the open, ESRCH
// after it.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, ErrChanged)
}
