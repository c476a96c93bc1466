// Package podnetns finds the network namespace of a running pod by what the kernel shows in /proc. It needs neither a
// container runtime nor a pause process.
//
//	found, err := podnetns.Find(ctx, podnetns.At("/host/proc"), uid, addrs)
//	ns, err := found.Open("/host/proc")
//
// A process belongs to the pod whose UID is in the path of its control group, as the kubelet writes it: version 1 or 2,
// with the systemd or the cgroupfs driver. Anybody to whom a group was delegated may make groups of any name, so the group counts only if
// root alone could make it, at its place directly below the kubelet's root: that in which our own pod is, or, for a process that is in no
// pod, the one at the top of the node's groups. A container may make groups of any name below its own, which are further down.
//
// Of the pod's processes, those count that are neither in the host's network namespace, as a runtime's monitor is, nor in one that a
// user namespace of somebody else owns. They prove a namespace if it has the pod's addresses and no other of theirs has; if two have, it
// cannot be told. Searching by address alone could lead into another pod's namespace.
//
// What is wrong with one process concerns its pod alone. One whose control groups cannot be read is passed over: its pod is not
// known, and each pod with a container has a process whose control group the kubelet made.
package podnetns

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/netnsexec"
)

// Errors of this package. Check with errors.Is(err, podnetns.ErrNoProcess), and so on.
var (
	// ErrNoProcess: no process of the pod runs now, or all are in the host's namespace. Retrying may help, since
	// containers restart.
	ErrNoProcess = errors.New("no process of the pod in a network namespace of its own")

	// ErrAddress: the namespaces of the pod's processes do not have the pod's addresses.
	ErrAddress = errors.New("network namespace does not have the pod's addresses")

	// ErrUID: the UID does not look like one that a kubelet puts into a path.
	ErrUID = errors.New("not a pod's UID")

	// ErrSeveral: the pod's processes are in several network namespaces with its addresses, so it cannot be told which is the pod's.
	ErrSeveral = errors.New("processes of the pod are in several network namespaces with its addresses")

	// ErrUsers: the network namespace is owned by a user namespace that is neither the host's nor the pod's.
	ErrUsers = errors.New("network namespace of another user namespace")

	// ErrLong: the pod has more than is read of one pod. See also [Has].
	ErrLong = nfnetlink.ErrLong

	// ErrChanged: since Find, the process has ended or its PID belongs to another one. Call Find again.
	ErrChanged = errors.New("process has changed")
)

// Wanted describes a pod's network namespace.
type Wanted struct {
	// Addrs are the pod's. None: they are not verified.
	Addrs []netip.Addr
	// OwnUsers: the pod has a user namespace of its own (hostUsers: false), which may own the network namespace.
	OwnUsers bool
}

// Found is a process in the pod's network namespace.
type Found struct {
	// UID is the pod's.
	UID string
	// PID is the process ID in the proc file system that was searched.
	PID int
	// Started is the process's start, in clock ticks since boot.
	Started uint64
	// NetNS names the namespace as readlink of its file does: "net:[4026532281]".
	NetNS string
}

// Path returns the path of the namespace's file below the root of the proc file system.
func (f Found) Path() string { return strconv.Itoa(f.PID) + "/ns/net" }

// Same reports whether the process still runs, in the same namespace. Its control groups are not read again: only root moves a process out
// of a pod's.
func (f Found) Same(proc fs.FS) bool {
	now, err := process(proc, f.PID, f.UID)
	return err == nil && f.PID != 0 && now == f
}

// Open opens the namespace. The root is that of the proc file system that Find searched. Open verifies that the file is
// the one that Find saw. Errors are [ErrChanged] or those of [netnsexec.Open], which refuses the host's namespace.
func (f Found) Open(procRoot string) (*netnsexec.NetNS, error) {
	fail := func(err error) error {
		return fmt.Errorf("open network namespace of pod %s by process %d: %w", f.UID, f.PID, err)
	}
	ns, err := netnsexec.Open(filepath.Join(procRoot, f.Path()))
	if errors.Is(err, netnsexec.ErrGone) {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if err != nil {
		return nil, fail(err)
	}
	// An open namespace does not change, so looking at the process afterwards is enough.
	if !f.Same(os.DirFS(procRoot)) || ns.ID().String() != f.NetNS {
		return nil, errors.Join(fail(ErrChanged), ns.Close())
	}
	return ns, nil
}

// Find searches a proc file system for the namespace of the pod.
// Errors are [ErrUID], [ErrNoProcess], [ErrAddress], [ErrUsers], [ErrSeveral], or that of a file that could not be read. A process that ends
// meanwhile is no error. The context ends the search between two processes, and a look into a namespace.
func Find(ctx context.Context, proc Proc, uid string, pod Wanted) (Found, error) {
	all, err := FindAll(ctx, proc, map[string]Wanted{uid: pod})
	if err != nil {
		return Found{}, fmt.Errorf("find network namespace of pod %s: %w", uid, err)
	}
	return all[uid].Found, all[uid].Err
}

// Result is the result of [FindAll] for a pod, or the reason that there is none.
type Result struct {
	Found Found
	Err   error
}

// FindAll is [Find] for many pods, by their UIDs. It lists the processes once and reads one file
// of each, and further files of those that are the pods'. Each pod has a result; the error is one that concerns all. It looks into
// several pods at a time, since a pod may make a look into it long, and into each for ten seconds at most. When the context ends, the
// pods that were not looked into have its error.
func FindAll(ctx context.Context, proc Proc, pods map[string]Wanted) (map[string]Result, error) {
	results := make(map[string]Result, len(pods))
	wanted := make(map[string]*processesOf, len(pods))
	for uid := range pods {
		if ValidUID(uid) {
			wanted[uid] = &processesOf{}
		} else {
			results[uid] = Result{Err: fmt.Errorf("find network namespace of pod %q: %w", uid, ErrUID)}
		}
	}
	if len(wanted) == 0 {
		return results, nil
	}
	hosts, err := hosts(proc)
	var unread error
	if err == nil {
		err = proc.Groups(func(made Made) (err error) {
			unread, err = processes(ctx, proc, made, wanted)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var looks errgroup.Group
	looks.SetLimit(Workers())
	for uid, p := range wanted {
		looks.Go(func() error {
			found, err := Found{}, p.err
			if err == nil {
				looking, done := context.WithTimeoutCause(ctx, lookTime, errLookTime)
				found, err = choose(looking, proc, hosts, p.all, pods[uid])
				done()
			}
			if errors.Is(err, ErrNoProcess) && p.foreign != 0 {
				err = fmt.Errorf("%w; the control group of process %d has the pod's name, but is not the kubelet's", err, p.foreign)
			}
			if errors.Is(err, ErrNoProcess) && unread != nil {
				err = fmt.Errorf("%w; of some processes it is not known whose they are: %w", err, unread)
			}
			if err != nil {
				err = fmt.Errorf("find network namespace of pod %s: %w", uid, err)
			}
			mu.Lock()
			defer mu.Unlock()
			results[uid] = Result{found, err}
			return nil
		})
	}
	return results, looks.Wait()
}

// Workers bounds the pods that are looked into at a time: GOMAXPROCS, but at least 4, since a look may wait for the kernel.
func Workers() int { return max(4, runtime.GOMAXPROCS(0)) }

// lookTime bounds how long is looked into all namespaces of one pod. A look takes well under a millisecond, and on a busy node as long as it has to wait.
const lookTime = 10 * time.Second

// errLookTime says that lookTime is over.
var errLookTime = fmt.Errorf("%w: to look into its network namespaces takes over %s", ErrLong, lookTime)

// processesOf are the processes of a pod, or why they cannot be known.
type processesOf struct {
	all     []Found
	err     error
	foreign int // a process in a group of the pod's name that is not the kubelet's
}

// maxNamespaces bounds how many namespaces of a pod's processes are looked into: those of a pod that runs containers itself.
const maxNamespaces = 64

// choose returns the oldest of a pod's processes in the one namespace that is as wanted.
func choose(ctx context.Context, proc Proc, hosts []string, all []Found, pod Wanted) (chosen Found, err error) {
	slices.SortFunc(all, func(a, b Found) int {
		return cmp.Or(cmp.Compare(a.Started, b.Started), cmp.Compare(a.PID, b.PID))
	})
	seen := slices.Clone(hosts)
	var others []string
	var users error
	for _, p := range all { // the oldest process of each namespace but the host's
		if slices.Contains(seen, p.NetNS) {
			continue
		}
		if len(seen)-len(hosts) == maxNamespaces {
			return Found{}, fmt.Errorf("%w: its processes are in over %d network namespaces", ErrLong, maxNamespaces)
		}
		if ctx.Err() != nil {
			return Found{}, context.Cause(ctx)
		}
		has, err := proc.Has(ctx, p, pod)
		if gone(err) {
			continue
		}
		seen = append(seen, p.NetNS)
		switch {
		case errors.Is(err, ErrUsers):
			users = fmt.Errorf("process %d: %w", p.PID, err)
		case err != nil:
			return Found{}, fmt.Errorf("process %d: %w", p.PID, err)
		case len(has.Missing) > 0:
			others = append(others, fmt.Sprintf("process %d in %s has %s", p.PID, p.NetNS, has))
		case chosen.PID != 0:
			return Found{}, fmt.Errorf("%w: process %d in %s, process %d in %s", ErrSeveral, chosen.PID, chosen.NetNS, p.PID, p.NetNS)
		default:
			chosen = p
		}
	}
	switch {
	case chosen.PID != 0:
		return chosen, nil
	case len(others) > 0:
		return Found{}, fmt.Errorf("%w %s: %s", ErrAddress, Few(pod.Addrs), strings.Join(others[:min(len(others), maxNamed)], "; "))
	case users != nil:
		return Found{}, users
	}
	return Found{}, fmt.Errorf("%w (%d in the host's)", ErrNoProcess, len(all))
}

// hosts returns the namespaces that are no pod's: that of process 1 and our own, as far as they can be seen. A proc file
// system of another PID namespace has no self.
func hosts(proc fs.FS) (namespaces []string, err error) {
	for _, path := range []string{"1/ns/net", "self/ns/net"} {
		if ns, errLink := fs.ReadLink(proc, path); errLink == nil {
			namespaces = append(namespaces, ns)
		} else {
			err = errors.Join(err, errLink)
		}
	}
	if len(namespaces) == 0 {
		return nil, fmt.Errorf("read the host's namespace: %w", err)
	}
	return namespaces, nil
}

// ValidUID ensures that a UID matches nothing but itself. Kubelets use UUIDs and, for pods from files, hexadecimal hashes.
func ValidUID(uid string) bool {
	const digits = "0123456789abcdefABCDEF-"
	return len(uid) >= 16 && len(uid) <= 64 && strings.TrimLeft(uid, digits) == ""
}

// processes adds the processes of the wanted pods. unread is why it is not known of a process which pod's it is, for example
// ENAMETOOLONG: a container may nest control groups until the kernel does not print their path.
func processes(ctx context.Context, proc fs.FS, made Made, wanted map[string]*processesOf) (unread, err error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	k, err := learn(proc, made)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 {
			continue
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("look at the node's processes: %w", context.Cause(ctx))
		}
		uid, claimed, err := k.owner(proc, pid)
		if err != nil {
			if p := wanted[claimed]; p != nil && !gone(err) {
				p.err = fmt.Errorf("look at process %d: %w", pid, err)
			} else if unread == nil && !gone(err) {
				unread = fmt.Errorf("look at process %d: %w", pid, err)
			}
			continue
		}
		if p := wanted[claimed]; p != nil && claimed != uid {
			p.foreign = pid
		}
		pod := wanted[uid]
		if pod == nil {
			continue
		}
		switch p, err := process(proc, pid, uid); {
		case err == nil && p.PID != 0:
			pod.all = append(pod.all, p)
		case err != nil && !gone(err):
			pod.err = fmt.Errorf("look at process %d: %w", pid, err)
		}
	}
	return unread, nil
}

// Owner returns the UID of the pod that a process belongs to, or "".
func Owner(proc Proc, pid int) (uid string, err error) {
	err = proc.Groups(func(made Made) error {
		k, err := learn(proc, made)
		if err == nil {
			uid, _, err = k.owner(proc, pid)
		}
		return err
	})
	return uid, err
}

// process looks at a pod's process. It returns the zero Found if that has ended.
func process(proc fs.FS, pid int, uid string) (Found, error) {
	dir := strconv.Itoa(pid)
	stat, err := fs.ReadFile(proc, dir+"/stat")
	if err != nil {
		return Found{}, err
	}
	started, zombie, err := parseStat(stat)
	if err != nil || zombie { // a zombie has left its namespaces
		return Found{}, err
	}
	netns, err := fs.ReadLink(proc, dir+"/ns/net")
	if err != nil {
		return Found{}, fmt.Errorf("%w (needs CAP_SYS_PTRACE and the host's PID namespace)", err)
	}
	return Found{UID: uid, PID: pid, Started: started, NetNS: netns}, nil
}

// parseStat parses the state and the start time, fields 3 and 22 of proc_pid_stat(5). The name before them is in
// parentheses and may contain anything.
func parseStat(stat []byte) (started uint64, zombie bool, err error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	const state, start = 0, 19 // counted from the third field
	if end < 0 || len(fields) <= start {
		return 0, false, fmt.Errorf("malformed stat %q", stat)
	}
	started, err = strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("malformed stat: %w", err)
	}
	return started, fields[state] == "Z" || fields[state] == "X", nil
}
