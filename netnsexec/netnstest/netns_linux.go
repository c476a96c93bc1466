package netnstest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// rootCheck makes a namespace, since UID 0 alone may lack the right, as in a container.
var rootCheck = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("running as UID %d", os.Geteuid())
	}
	return inNewNetNS(func() error { return nil })
})

// inNewNetNS calls fn in a fresh network namespace that only fn's thread holds.
func inNewNetNS(fn func() error) error {
	// The Do of our own namespace gives a thread that is not the process's main one.
	here, err := netnsexec.Current()
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	return here.Do(func() error {
		// Locked once more than it is unlocked: this thread ends with its goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		return fn()
	})
}

// New makes a network namespace with lo up, and a path below tb.TempDir. It is removed when the test ends. Of a test that
// has failed it logs the namespace's addresses, routes, rules and tracked connections then. It requires [Root].
func New(tb testing.TB) *netnsexec.NetNS {
	tb.Helper()
	Require(tb, Root)
	ns, err := newNetNS(tb, "netns")
	if err != nil {
		tb.Fatalf("make a network namespace: %v", err)
	}
	return ns
}

func newNetNS(tb testing.TB, name string) (ns *netnsexec.NetNS, err error) {
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		return nil, err
	}
	err = inNewNetNS(func() error {
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("give the network namespace a path: %w", err)
		}
		return setUpLo()
	})
	if err == nil {
		ns, err = netnsexec.Open(path)
	}
	tb.Cleanup(func() {
		if ns != nil {
			_ = ns.Close()
		}
		// Detached: a process that the test left behind must not block the removal of TempDir. EINVAL: not mounted.
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			tb.Fatalf("unmount %s: %v", path, err)
		}
	})
	if err == nil {
		onFailure(tb, func() string { return state(name, ns) })
	}
	return ns, err
}

// setUpLo acts in the calling thread's namespace.
func setUpLo() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loIndex}})
}

const loIndex = 1 // LOOPBACK_IFINDEX, include/net/flow.h: lo is the first link of each namespace
