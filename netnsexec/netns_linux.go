package netnsexec

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// NetNS is an open network namespace, which stays alive until Close. Its methods are safe for concurrent use; after Close
// they return an error that errors.Is(err, os.ErrClosed). Make one with [Open], [FromFile] or [Current].
type NetNS struct {
	path    string
	id      ID
	current bool // it is this process's own: nothing is entered

	mu sync.RWMutex // held for reading while the kernel uses fd, so that Close cannot recycle it
	fd int          // -1 once closed
}

// own is the ID of the process's network namespace: /proc/self is the main thread, which this package never moves.
var own = sync.OnceValues(func() (ID, error) { return statID("/proc/self/ns/net") })

// Open opens the network namespace at path: a bind mount such as /var/run/netns/cni-…, or /proc/PID/ns/net. Its errors
// name the path; it refuses namespaces that must not be programmed with [ErrGone], [ErrNotNetNS] and [ErrHost]. The
// caller calls Close.
func Open(path string) (*NetNS, error) {
	ns, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %q: %w", path, err)
	}
	return ns, nil
}

// FromFile is [Open] for a namespace that is open already, such as one that another process sent. The path is what Path
// returns. The file stays the caller's.
func FromFile(file syscall.Conn, path string) (*NetNS, error) {
	ns, err := notHost(func() (*NetNS, error) { return duplicate(file, path) })
	if err != nil {
		return nil, fmt.Errorf("take over network namespace %q: %w", path, err)
	}
	return ns, nil
}

func duplicate(file syscall.Conn, path string) (*NetNS, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var errDup error
	err = raw.Control(func(n uintptr) { fd, errDup = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) })
	if err = cmp.Or(err, errDup); err != nil {
		return nil, err
	}
	return fromFd(fd, path)
}

func open(path string) (*NetNS, error) {
	return notHost(func() (*NetNS, error) { return openFile(path) })
}

// notHost opens a namespace and refuses the host's.
func notHost(open func() (*NetNS, error)) (*NetNS, error) {
	self, err := own()
	if err != nil {
		return nil, err
	}
	ns, err := open()
	if err != nil {
		return nil, err
	}
	// Without the right to see process 1's namespace, comparing with our own has to do.
	if host, err := statID("/proc/1/ns/net"); ns.id == self || err == nil && ns.id == host {
		return nil, errors.Join(ErrHost, ns.Close())
	}
	return ns, nil
}

// openFile is Open without the comparison with the host.
func openFile(path string) (*NetNS, error) {
	// O_NONBLOCK: a fifo would hang the open until somebody writes to it.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		return nil, ErrGone
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV): // a unix socket; a device without a driver
		return nil, fmt.Errorf("%w: %w", ErrNotNetNS, err)
	case err != nil:
		return nil, err
	}
	return fromFd(fd, path)
}

// fromFd owns fd.
func fromFd(fd int, path string) (*NetNS, error) {
	id, err := identify(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &NetNS{path: path, id: id, fd: fd}, nil
}

// identify proves that fd is a network namespace. It checks the filesystem first: to another kind of file, the number of
// NS_GET_NSTYPE (linux/nsfs.h) may be a command of its own.
func identify(fd int) (ID, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return ID{}, fmt.Errorf("statfs: %w", err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return ID{}, fmt.Errorf("%w: filesystem type %#x is not nsfs (%#x)", ErrNotNetNS, fs.Type, unix.NSFS_MAGIC)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return ID{}, fmt.Errorf("ask for the kind of namespace: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return ID{}, fmt.Errorf("%w: namespace of another kind (%#x)", ErrNotNetNS, kind)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ID{}, fmt.Errorf("stat: %w", err)
	}
	return idOf(&st), nil
}

func statID(path string) (ID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ID{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return idOf(&st), nil
}

// idOf converts, because Stat_t's field types differ between architectures.
func idOf(st *unix.Stat_t) ID { return ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)} } //nolint:unconvert // the types differ between architectures

// Current opens this process's own network namespace, for a program that runs in the pod already. Do, Run and Socket
// need no capability then. The caller calls Close.
func Current() (*NetNS, error) {
	ns, err := openFile("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	ns.current = true
	return ns, nil
}

// OpenHost opens a node's own network namespace, for an agent that keeps rules there and is not in it: path is
// "/proc/1/ns/net" where the agent shares the host's processes. [Open] refuses that namespace, because rules of a pod would
// capture the node's traffic. The errors are those of Open without [ErrHost]. The caller calls Close.
func OpenHost(path string) (*NetNS, error) {
	ns, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("open the host's network namespace %q: %w", path, err)
	}
	return ns, nil
}

// Fd returns the file descriptor, for netlink attributes such as IFLA_NET_NS_FD; -1 after Close, which closes it.
func (n *NetNS) Fd() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.fd
}

// Path returns the path that n was opened by.
func (n *NetNS) Path() string { return n.path }

// ID returns the namespace's identity.
func (n *NetNS) ID() ID { return n.id }

// Close releases the namespace. A second Close does nothing.
func (n *NetNS) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd < 0 {
		return nil
	}
	fd := n.fd
	n.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close network namespace %q: %w", n.path, err)
	}
	return nil
}

// enter moves the calling thread into n.
func (n *NetNS) enter() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.fd < 0 {
		return fmt.Errorf("enter network namespace %q: %w", n.path, os.ErrClosed)
	}
	if n.current {
		return nil
	}
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %q: %w", n.path, err)
	}
	return nil
}

// Socket opens a socket in n, as socket(2) with SOCK_CLOEXEC. It belongs to the caller, and stays in n whatever thread
// uses it: with a netlink socket, any number of requests cost one entry.
func (n *NetNS) Socket(domain, typ, proto int) (fd int, err error) {
	fd = -1
	err = n.Do(func() error {
		var err error
		if fd, err = unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto); err != nil {
			return fmt.Errorf("open socket in network namespace %q: %w", n.path, err)
		}
		return nil
	})
	return fd, err
}

// New makes an empty network namespace, to try in it what must not be tried in another. It is nobody's, and ends with the last that
// has it open: the caller calls Close. errors.Is(err, fs.ErrPermission) without CAP_SYS_ADMIN.
func New() (n *NetNS, err error) {
	err = onThread(func(*thread) error { // which ends with this: it is in another namespace now
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		n, err = openFile("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return n, nil
}
