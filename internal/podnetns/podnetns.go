// Package podnetns finds the network namespace of a running pod from what the
// kernel says in /proc: no container runtime is asked, and no pause process needed.
//
//	found, err := podnetns.Find(os.DirFS("/host/proc"), uid, addrs)
//	ns, err := found.Open("/host/proc")
//
// A process is the pod's when the path of its control group holds the pod's UID,
// as the kubelet writes it: version 1 and 2 of control groups, with the systemd
// and the cgroupfs driver. The outermost such part decides: a container may make
// groups of any name below its own. Of the pod's processes the oldest one that is not in the
// host's namespace tells the pod's: younger ones may be in namespaces that the
// pod made itself, and a runtime's monitor in the pod's group is in the host's.
// The pod's addresses are a check on the result, never the way to it: an address
// alone has led other programs into the namespace of another pod.
package podnetns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

var (
	// ErrNoProcess: no process of the pod runs now, or all are in the host's
	// namespace. Check with errors.Is(err, podnetns.ErrNoProcess). A container that
	// is restarted now and then is worth another look.
	ErrNoProcess = errors.New("no process of the pod in a network namespace of its own")

	// ErrAddress: the pod's processes are in namespaces that lack the pod's
	// addresses. Check with errors.Is(err, podnetns.ErrAddress).
	ErrAddress = errors.New("network namespace does not have the pod's addresses")

	// ErrUID: the UID is none that a kubelet would put into a path. Check with
	// errors.Is(err, podnetns.ErrUID).
	ErrUID = errors.New("not a pod's UID")

	// ErrChanged: the process has ended, or is another one now, since Find. Check
	// with errors.Is(err, podnetns.ErrChanged); Find again then.
	ErrChanged = errors.New("process has changed")
)

// Found is a process in the pod's network namespace.
type Found struct {
	// UID is the pod's.
	UID string
	// PID is as in the proc file system that was given to Find.
	PID int
	// Started is when the process started, in clock ticks since boot.
	Started uint64
	// NetNS is the namespace, as readlink of its file prints it: "net:[4026532281]".
	NetNS string
}

// Path is the namespace's file below the root of that proc file system.
func (f Found) Path() string { return path.Join(strconv.Itoa(f.PID), "ns", "net") }

// Still reports whether the process is the one that was found, in the same
// namespace with the addresses: then there is no need to Find it again, which reads a
// file of every process on the node.
func (f Found) Still(proc fs.FS, addrs []netip.Addr) bool {
	now, err := look(proc, f.PID, f.UID)
	if err != nil || now != f || f.PID == 0 {
		return false
	}
	has, err := addresses(proc, f.PID)
	return err == nil && containsAll(has, addrs)
}

// Find looks in proc, a proc file system (os.DirFS of its root), for the
// namespace of the pod. The addresses are the pod's; without any that check is not
// made. Errors: [ErrUID], [ErrNoProcess], [ErrAddress], or that of a file that
// could not be read. A process that ends meanwhile is no error.
func Find(proc fs.FS, uid string, addrs []netip.Addr) (Found, error) {
	found, err := find(proc, uid, addrs)
	if err != nil {
		return Found{}, fmt.Errorf("find network namespace of pod %s: %w", uid, err)
	}
	return found, nil
}

func find(proc fs.FS, uid string, addrs []netip.Addr) (Found, error) {
	if !validUID(uid) {
		return Found{}, ErrUID
	}
	host, err := hosts(proc)
	if err != nil {
		return Found{}, err
	}
	all, err := processes(proc, uid)
	if err != nil {
		return Found{}, err
	}
	var candidates []Found // the oldest process of each namespace
	for _, p := range all {
		if !slices.Contains(host, p.NetNS) && !slices.ContainsFunc(candidates, func(c Found) bool { return c.NetNS == p.NetNS }) {
			candidates = append(candidates, p)
		}
	}
	if len(candidates) == 0 {
		return Found{}, fmt.Errorf("%w (%d in the host's)", ErrNoProcess, len(all))
	}
	var seen []string
	for _, c := range candidates {
		has, err := addresses(proc, c.PID)
		if err != nil {
			if gone(err) {
				continue
			}
			return Found{}, err
		}
		if containsAll(has, addrs) {
			return c, nil
		}
		seen = append(seen, fmt.Sprintf("process %d in %s has %v", c.PID, c.NetNS, has))
	}
	if len(seen) == 0 {
		return Found{}, ErrNoProcess
	}
	return Found{}, fmt.Errorf("%w %v: %s", ErrAddress, addrs, strings.Join(seen, "; "))
}

// hosts returns the namespaces that are no pod's: that of process 1, where it can
// be seen, and our own.
func hosts(proc fs.FS) ([]string, error) {
	first, err := fs.ReadLink(proc, "1/ns/net")
	own, errOwn := fs.ReadLink(proc, "self/ns/net")
	switch {
	case err == nil && errOwn == nil:
		return []string{first, own}, nil
	case err == nil: // a proc file system of another PID namespace has no self
		return []string{first}, nil
	case errOwn == nil:
		return []string{own}, nil
	}
	return nil, fmt.Errorf("read the host's namespace: %w", err)
}

// validUID keeps a UID from matching more than itself: kubelets use UUIDs, and
// hashes in hexadecimal for pods from files.
func validUID(uid string) bool {
	if len(uid) < 16 || len(uid) > 64 {
		return false
	}
	return !strings.ContainsFunc(uid, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'f') && (r < 'A' || r > 'F')
	})
}

// processes returns the pod's processes, the oldest first.
func processes(proc fs.FS, uid string) ([]Found, error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	node, err := nodeGroups(proc)
	if err != nil {
		return nil, err
	}
	var all []Found
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 {
			continue
		}
		p, err := process(proc, node, pid, uid)
		switch {
		case err == nil && p.PID != 0:
			all = append(all, p)
		case err != nil && !gone(err):
			return nil, fmt.Errorf("look at process %d: %w", pid, err)
		}
	}
	slices.SortFunc(all, func(a, b Found) int {
		switch {
		case a.Started < b.Started:
			return -1
		case a.Started > b.Started:
			return 1
		}
		return a.PID - b.PID
	})
	return all, nil
}

// look looks at one process by itself.
func look(proc fs.FS, pid int, uid string) (Found, error) {
	node, err := nodeGroups(proc)
	if err != nil {
		return Found{}, err
	}
	return process(proc, node, pid, uid)
}

// process looks at one process, on a node with such groups. The zero Found is one that is not the pod's.
func process(proc fs.FS, node groups, pid int, uid string) (Found, error) {
	dir := strconv.Itoa(pid)
	text, err := fs.ReadFile(proc, dir+"/cgroup")
	if err != nil || podOf(text, node) != uid {
		return Found{}, err
	}
	stat, err := fs.ReadFile(proc, dir+"/stat")
	if err != nil {
		return Found{}, err
	}
	started, zombie, err := parseStat(stat)
	if err != nil || zombie { // a zombie has given up its namespaces
		return Found{}, err
	}
	netns, err := fs.ReadLink(proc, dir+"/ns/net")
	if err != nil {
		return Found{}, fmt.Errorf("%w (needs CAP_SYS_PTRACE and the host's PID namespace)", err)
	}
	return Found{UID: uid, PID: pid, Started: started, NetNS: netns}, nil
}

// parseStat reads the state and the start time, fields 3 and 22 of proc_pid_stat(5).
// The name before them is in parentheses and may hold anything.
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

func containsAll(has, want []netip.Addr) bool {
	for _, a := range want {
		if !slices.Contains(has, a) {
			return false
		}
	}
	return true
}
