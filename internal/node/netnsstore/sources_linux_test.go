package netnsstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// node is a node's files about one pod, and the pod.
type node struct {
	t   *testing.T
	o   netnsstore.Options
	dir string // libcni's cache
	uid types.UID
	ns  *netnsexec.NetNS // the pod's
}

func newNode(t *testing.T) *node {
	o, dir := netnsstore.Options{RunDir: t.TempDir()}, t.TempDir()
	o.Inventory = inventory.New(inventory.Options{Records: attachment.Open(o.RunDir), CacheDir: dir})
	return &node{t, o, dir, newUID(), newPodNS(t, addrA, addrB)}
}

// record writes the plugin's record of a container.
func (n *node) record(uid types.UID, container, path string, id netnsexec.ID) {
	n.t.Helper()
	made := time.Unix(int64(len(container)), 0) // the longer its name, the younger it is
	require.NoError(n.t, attachment.Open(n.o.RunDir).Write(attachment.Record{
		ID: attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}, NetNS: attachment.NetNS{Path: path, Dev: id.Dev, Ino: id.Ino},
		Pod: status.ID{Namespace: "shop", Name: "cart-0", UID: string(uid)}, Reason: "test", By: "ADD", Time: made,
	}))
}

// cache writes libcni's file about a container.
func (n *node) cache(dir string, uid types.UID, container, path string, addrs ...netip.Addr) {
	n.t.Helper()
	args := [][2]string{{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart-0"}}
	if uid != "" {
		args = append(args, [2]string{"K8S_POD_UID", string(uid)})
	}
	var ips []map[string]string
	for _, a := range addrs {
		ips = append(ips, map[string]string{"address": netip.PrefixFrom(a, 24).String()})
	}
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": container, "networkName": "k8s", "ifName": "eth0", "cniArgs": args,
		"result": map[string]any{"cniVersion": "1.0.0", "ips": ips, "interfaces": []map[string]string{{"name": "eth0", "sandbox": path}}},
	})
	require.NoError(n.t, err)
	dir = filepath.Join(n.dir, dir)
	require.NoError(n.t, os.MkdirAll(dir, 0o755))
	require.NoError(n.t, os.WriteFile(filepath.Join(dir, "k8s-"+container+"-eth0"), text, 0o600))
}

func (n *node) process(ns *netnsexec.NetNS) *os.Process {
	return podproctest.Start(n.t, ns, podproctest.Plain("kubepods/besteffort/pod%s/5ad0d8f4", string(n.uid)))
}

// TestSources: who is believed about which namespace is a pod's, and who is not.
func TestSources(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, podproctest.Cgroups)
	const results = "results"
	other := types.UID(podproctest.NewUID())
	for name, c := range map[string]struct {
		node  func(n *node)
		addrs []netip.Addr
		want  netnsstore.Source
		tried map[netnsstore.Source]error // what was not believed, and why
	}{
		"record, no process": {node: func(n *node) { n.record(n.uid, "c1", n.ns.Path(), n.ns.ID()) }, want: netnsstore.Record},
		"record before cache": {node: func(n *node) {
			n.record(n.uid, "c1", n.ns.Path(), n.ns.ID())
			n.cache(results, n.uid, "c1", n.ns.Path(), addrA)
		}, want: netnsstore.Record},
		"cache, no process": {node: func(n *node) { n.cache(results, n.uid, "c1", n.ns.Path(), addrA) }, want: netnsstore.Cache},
		"cache of cri-dockerd": {node: func(n *node) { n.cache("cache/results", n.uid, "c1", n.ns.Path(), addrA) },
			want: netnsstore.Cache},
		"cache of Multus": {node: func(n *node) { n.cache("multus/results", n.uid, "c1", n.ns.Path(), addrA) }, want: netnsstore.Cache},
		"process":         {node: func(n *node) { n.process(n.ns) }, want: netnsstore.Process},
		"nobody":          {node: func(*node) {}, tried: map[netnsstore.Source]error{netnsstore.Process: netnsstore.ErrNoProcess}},

		"the path leads elsewhere by now": {node: func(n *node) {
			n.record(n.uid, "c1", newPodNS(n.t, addrA, addrB).Path(), n.ns.ID())
		}, tried: map[netnsstore.Source]error{netnsstore.Record: netnsstore.ErrForeign, netnsstore.Process: netnsstore.ErrNoProcess}},
		"the path is what a mount left": {node: func(n *node) {
			path := filepath.Join(n.t.TempDir(), "cni-1")
			require.NoError(n.t, os.WriteFile(path, nil, 0o600))
			n.record(n.uid, "c1", path, n.ns.ID())
			n.cache(results, n.uid, "c1", path, addrA)
		}, tried: map[netnsstore.Source]error{netnsstore.Record: netnsexec.ErrNotNetNS, netnsstore.Cache: netnsexec.ErrNotNetNS,
			netnsstore.Process: netnsstore.ErrNoProcess}},
		"the path is gone": {node: func(n *node) {
			n.record(n.uid, "c1", "/var/run/netns/cni-none", n.ns.ID())
			n.cache(results, n.uid, "c1", n.ns.Path(), addrA)
		}, want: netnsstore.Cache},
		"the path is the host's": {node: func(n *node) {
			n.cache(results, n.uid, "c1", bindMount(n.t, "/proc/self/ns/net"))
		}, tried: map[netnsstore.Source]error{netnsstore.Cache: netnsexec.ErrHost, netnsstore.Process: netnsstore.ErrNoProcess}},
		"no number in the record": {node: func(n *node) { n.record(n.uid, "c1", n.ns.Path(), netnsexec.ID{}) },
			tried: map[netnsstore.Source]error{netnsstore.Record: nil, netnsstore.Process: netnsstore.ErrNoProcess}},
		"the pod before it, of the same name": {node: func(n *node) {
			n.record(other, "c1", n.ns.Path(), n.ns.ID())
			n.cache(results, other, "c1", n.ns.Path(), addrA)
		}, tried: map[netnsstore.Source]error{netnsstore.Process: netnsstore.ErrNoProcess}},
		"a runtime that passes no UID": {node: func(n *node) { n.cache(results, "", "c1", n.ns.Path(), addrA) },
			tried: map[netnsstore.Source]error{netnsstore.Process: netnsstore.ErrNoProcess}},
		"an address is missing": {node: func(n *node) {
			removeAddrs(n.t, n.ns, addrB)
			n.record(n.uid, "c1", n.ns.Path(), n.ns.ID())
			n.cache(results, n.uid, "c1", n.ns.Path(), addrA)
		}, tried: map[netnsstore.Source]error{netnsstore.Record: netnsstore.ErrAddress, netnsstore.Cache: netnsstore.ErrAddress,
			netnsstore.Process: netnsstore.ErrNoProcess}},
		"another pod has the address now": {node: func(n *node) { // and the sandbox of ours is left over
			removeAddrs(n.t, n.ns, addrA, addrB)
			n.cache(results, n.uid, "c1", n.ns.Path(), addrA)
			podproctest.Start(n.t, newPodNS(n.t, addrA, addrB), podproctest.Plain("kubepods/pod%s/5ad0d8f4", podproctest.NewUID()))
		}, tried: map[netnsstore.Source]error{netnsstore.Cache: netnsstore.ErrAddress, netnsstore.Process: netnsstore.ErrNoProcess}},
		"a process contradicts the runtime": {node: func(n *node) { // which the pod may have moved to a namespace that it has made
			n.record(n.uid, "c1", n.ns.Path(), n.ns.ID())
			n.process(newPodNS(n.t, addrA, addrB))
		}, want: netnsstore.Record},
		"a process contradicts the runtime's cache": {node: func(n *node) {
			n.cache(results, n.uid, "c1", n.ns.Path(), addrA)
			n.process(newPodNS(n.t, addrA, addrB))
		}, want: netnsstore.Cache},
		"of two that the runtime named one has a process": {node: func(n *node) {
			old := newPodNS(n.t, addrA, addrB) // of the sandbox before, whose DEL failed
			n.record(n.uid, "c1", old.Path(), old.ID())
			n.cache(results, n.uid, "c1", old.Path(), addrA)
			n.cache(results, n.uid, "c22", n.ns.Path(), addrA)
			n.process(n.ns)
		}, want: netnsstore.Cache},
		"of two that the runtime named none has a process": {node: func(n *node) {
			old := newPodNS(n.t, addrA, addrB)
			n.record(n.uid, "c1", old.Path(), old.ID())
			n.record(n.uid, "c22", n.ns.Path(), n.ns.ID())
			n.process(newPodNS(n.t, addrA, addrB))
		}, want: netnsstore.Record},
		"the runtime's path cannot be told, and processes are in two": {node: func(n *node) {
			n.record(n.uid, "c1", "/var/run/netns/cni-none", n.ns.ID())
			n.process(newPodNS(n.t, addrA, addrB)) // the older one
			n.process(n.ns)
		}, tried: map[netnsstore.Source]error{netnsstore.Record: netnsexec.ErrGone, netnsstore.Process: podnetns.ErrSeveral}},
		"a group of the pod's name that is a tenant's": {node: func(n *node) {
			group := podproctest.Plain("meshcni-test-tenant-"+string(n.uid)+"/kubepods/pod%s", string(n.uid))
			podproctest.Start(n.t, newPodNS(n.t, addrA, addrB), group)
			podproctest.Own(n.t, filepath.Dir(filepath.Dir(group)), group, 1000)
		}, tried: map[netnsstore.Source]error{netnsstore.Process: netnsstore.ErrNoProcess}},
		"a process agrees": {node: func(n *node) {
			n.cache(results, n.uid, "c1", n.ns.Path(), addrA)
			n.process(n.ns)
		}, want: netnsstore.Cache},
		"processes in other namespaces agree to nothing": {node: func(n *node) {
			n.process(nil)           // a monitor
			n.process(newPodNS(n.t)) // made by the pod
			n.record(n.uid, "c1", n.ns.Path(), n.ns.ID())
		}, want: netnsstore.Record},
		"only the monitor is left": {node: func(n *node) { n.process(nil) },
			tried: map[netnsstore.Source]error{netnsstore.Process: netnsstore.ErrNoProcess}},
		"the pod made a namespace": {node: func(n *node) { n.process(newPodNS(n.t, addrA)) },
			tried: map[netnsstore.Source]error{netnsstore.Process: netnsstore.ErrAddress}},
		"the older sandbox has no address": {node: func(n *node) {
			old := newPodNS(n.t)
			n.record(n.uid, "c1", old.Path(), old.ID())
			n.record(n.uid, "c22", n.ns.Path(), n.ns.ID())
		}, want: netnsstore.Record},
		"two sandboxes, the younger counts": {node: func(n *node) {
			old := newPodNS(n.t, addrA, addrB)
			n.record(n.uid, "c1", old.Path(), old.ID())
			n.record(n.uid, "c22", n.ns.Path(), n.ns.ID())
		}, want: netnsstore.Record},
		"a path through a process": {node: func(n *node) {
			path := fmt.Sprintf("/proc/%d/ns/net", podproctest.Start(n.t, n.ns, "meshcni-test-"+string(n.uid)).Pid)
			n.record(n.uid, "c1", path, n.ns.ID())
			n.cache(results, n.uid, "c1", path, addrA)
		}, tried: map[netnsstore.Source]error{netnsstore.Record: nil, netnsstore.Cache: nil, netnsstore.Process: netnsstore.ErrNoProcess}},
		"no address is known": {node: func(n *node) {
			n.record(n.uid, "c1", n.ns.Path(), n.ns.ID())
			n.process(n.ns)
		}, addrs: []netip.Addr{}, tried: map[netnsstore.Source]error{netnsstore.Record: netnsstore.ErrNoAddress,
			netnsstore.Process: netnsstore.ErrNoAddress}},
		"only the runtime knows the addresses": {node: func(n *node) { n.cache(results, n.uid, "c1", n.ns.Path(), addrA) },
			addrs: []netip.Addr{}, want: netnsstore.Cache},
		"a record that cannot be read": {node: func(n *node) {
			n.record(n.uid, "c1", n.ns.Path(), n.ns.ID())
			files, err := filepath.Glob(filepath.Join(n.o.RunDir, "attachments", "*"))
			require.NoError(n.t, err)
			require.NoError(n.t, os.Truncate(files[0], 10))
		}, tried: map[netnsstore.Source]error{netnsstore.Record: nil, netnsstore.Process: netnsstore.ErrNoProcess}},
		"mapped addresses": {node: func(n *node) { n.process(n.ns) },
			addrs: []netip.Addr{netip.AddrFrom16(addrA.As16()), addrB}, want: netnsstore.Process},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			c.node(n)
			if c.addrs == nil {
				c.addrs = []netip.Addr{addrA, addrB}
			}
			s := newStore(t, n.o)
			ref, err := s.Find(t.Context(), netnsstore.Pod{UID: n.uid, Addrs: c.addrs})
			if c.want != "" {
				require.NoError(t, err)
				assert.Equal(t, n.ns.ID(), ref.ID())
				assert.Equal(t, c.want, ref.Source())
				require.NoError(t, ref.Close())
				require.NoError(t, s.Journal())
				assert.Equal(t, map[types.UID]netnsexec.ID{n.uid: n.ns.ID()}, entries(t, n.o.RunDir), "the next start needs no source")
				return
			}
			var notFound *netnsstore.NotFoundError
			require.ErrorAs(t, err, &notFound)
			assert.Nil(t, ref)
			assert.Len(t, notFound.Tried, len(c.tried), "%v", err)
			for _, a := range notFound.Tried {
				assert.Contains(t, c.tried, a.Source)
				if want := c.tried[a.Source]; want != nil {
					assert.ErrorIs(t, a.Err, want)
				}
			}
			assert.Nil(t, s.Get(n.uid))
			assert.Empty(t, entries(t, n.o.RunDir))
		})
	}
}

// bindMount mounts a namespace elsewhere.
func bindMount(t *testing.T, source string) string {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return path
}

func TestFindRefuses(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := newStore(t, n.o)
	put(t, s, attach(n.uid, addrA), n.ns)
	_, err := s.Find(t.Context(), netnsstore.Pod{UID: "..", Addrs: podAddrs})
	require.ErrorIs(t, err, netnsstore.ErrUID)

	other := newUID() // another pod's record leads to the same namespace
	n.record(other, "c2", n.ns.Path(), n.ns.ID())
	_, err = s.Find(t.Context(), netnsstore.Pod{UID: other, Addrs: []netip.Addr{addrA}})
	require.ErrorIs(t, err, netnsstore.ErrForeign)
}

// TestUserNamespaces: a pod with hostUsers: false has a network namespace that belongs to its user namespace.
func TestUserNamespaces(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}},
	}
	process := podproctest.StartCommand(t, cmd, nil, podproctest.Plain("kubepods/pod%s/5ad0d8f4", string(n.uid)))
	ns, err := netnsexec.Open(fmt.Sprintf("/proc/%d/ns/net", process.Pid))
	require.NoError(t, err)
	defer func() { require.NoError(t, ns.Close()) }()
	addAddrs(t, ns, addrA)
	s := newStore(t, n.o)
	_, err = s.Find(t.Context(), netnsstore.Pod{UID: n.uid, Addrs: []netip.Addr{addrA}})
	require.ErrorIs(t, err, podnetns.ErrUsers, "of a pod without hostUsers: false")
	ref, err := s.Find(t.Context(), netnsstore.Pod{UID: n.uid, Addrs: []netip.Addr{addrA}, OwnUsers: true})
	require.NoError(t, err)
	assert.Equal(t, ns.ID(), ref.ID())
	assert.Equal(t, netnsstore.Process, ref.Source())
	require.NoError(t, ref.Close())
	require.NoError(t, process.Kill())
	_, err = process.Wait()
	require.NoError(t, err)
	require.NoError(t, s.Close())
	id, source := find(t, newStore(t, n.o), n.uid, addrA)
	assert.Equal(t, ns.ID(), id, "without a process, as CRI-O runs pods without an infra container")
	assert.Equal(t, netnsstore.Journal, source)
}

// TestPathsAreTheHosts: the runtime's paths, and the links in them, mean what they mean to the host.
func TestPathsAreTheHosts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	dir := t.TempDir() // a tmpfs that only the host has
	host := exec.Command("sh", "-c", `mount -t tmpfs tmpfs "$1" && touch "$1/ns" && mount --bind "$2" "$1/ns" && ln -s "$1" "$1/run" && exec sleep infinity`,
		"sh", dir, n.ns.Path())
	host.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	require.NoError(t, host.Start())
	t.Cleanup(func() { _ = host.Process.Kill(); _ = host.Wait() })
	n.o.HostRoot = fmt.Sprintf("/proc/%d/root", host.Process.Pid)
	path := filepath.Join(dir, "run", "run", "ns")
	require.Eventually(t, func() bool {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", host.Process.Pid))
		return err == nil && strings.TrimSpace(string(comm)) == "sleep"
	}, patience, tick)
	n.record(n.uid, "c1", path, n.ns.ID())
	id, source := find(t, newStore(t, n.o), n.uid, addrA)
	assert.Equal(t, n.ns.ID(), id)
	assert.Equal(t, netnsstore.Record, source)

	ours := newNode(t) // a host that cannot be entered, but its directory is mounted here too
	ours.o.HostRoot = "/proc/0/root"
	ours.record(ours.uid, "c1", ours.ns.Path(), ours.ns.ID())
	s := netnsstore.New(ours.o)
	defer func() { require.NoError(t, s.Close()) }()
	id, _ = find(t, s, ours.uid, addrA)
	require.ErrorIs(t, s.Journal(), netnsexec.ErrRoot)
	require.ErrorIs(t, netnsstore.RemoveJournal(ours.o), netnsexec.ErrRoot)
	assert.Equal(t, ours.ns.ID(), id)
}

func TestStillThere(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, podproctest.Cgroups)
	n := newNode(t)
	s := newStore(t, n.o)
	pod := netnsstore.Pod{UID: n.uid, Addrs: []netip.Addr{addrA}}
	still := func() error { return s.StillThere(t.Context(), pod)[n.uid] }
	require.ErrorIs(t, still(), netnsstore.ErrNotHeld)

	put(t, s, attach(n.uid, addrA, addrB), n.ns)
	require.NoError(t, still(), "no process yet")
	other := newPodNS(t, addrA)
	first := n.process(other)
	require.NoError(t, still(), "the runtime named it, and the pod's processes are where it moves them")
	all := s.StillThere(t.Context(), pod, pod, netnsstore.Pod{UID: newUID()})
	assert.Len(t, all, 2)
	require.NoError(t, all[n.uid])

	// A new sandbox of the pod whose ADD nobody told: a record names another namespace, and its processes are there.
	n.record(n.uid, "c22", other.Path(), other.ID())
	n.o.Inventory.Look() // a round may go by what was seen within a second
	require.ErrorIs(t, still(), netnsstore.ErrForeign)
	assert.Nil(t, s.Get(n.uid))
	require.ErrorIs(t, still(), netnsstore.ErrNotHeld)
	id, source := find(t, s, n.uid, addrA)
	assert.Equal(t, other.ID(), id)
	assert.Equal(t, netnsstore.Record, source)
	require.NoError(t, still())

	// A pod that only processes show: another may show another one.
	require.NoError(t, s.Forget(n.uid))
	require.NoError(t, os.RemoveAll(filepath.Join(n.o.RunDir, "attachments")))
	_, source = find(t, s, n.uid, addrA)
	assert.Equal(t, netnsstore.Process, source)
	require.NoError(t, still(), "by the process that is known")
	n.process(newPodNS(t, addrA))
	require.NoError(t, still(), "by the process that is known")
	require.NoError(t, first.Kill())
	_, err := first.Wait()
	require.NoError(t, err)
	require.ErrorIs(t, still(), netnsstore.ErrForeign)
	id, source = find(t, s, n.uid, addrA)
	assert.NotEqual(t, other.ID(), id)
	assert.Equal(t, netnsstore.Process, source)
	require.NoError(t, still())

	// The sandbox was taken down.
	ref := s.Get(n.uid)
	removeAddrs(t, ref.NetNS(), addrA)
	require.NoError(t, ref.Close())
	require.ErrorIs(t, still(), netnsstore.ErrAddress)
	_, err = s.Find(t.Context(), pod)
	require.ErrorIs(t, err, netnsstore.ErrAddress)
}

// TestStillThereCannotTell: what cannot be read is no answer.
func TestStillThereCannotTell(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.o.RunDir, n.o.ProcRoot = "", filepath.Join(t.TempDir(), "proc")
	require.NoError(t, os.Symlink("/proc", n.o.ProcRoot))
	process := n.process(n.ns)
	s := newStore(t, n.o)
	find(t, s, n.uid, addrA)
	require.NoError(t, process.Kill())
	_, err := process.Wait()
	require.NoError(t, err)
	require.NoError(t, os.Remove(n.o.ProcRoot))
	err = s.StillThere(t.Context(), netnsstore.Pod{UID: n.uid, Addrs: []netip.Addr{addrA}})[n.uid]
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = s.Find(t.Context(), netnsstore.Pod{UID: n.uid, Addrs: []netip.Addr{podAddrs[0]}})
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.NotNil(t, keep(t, s.Get(n.uid)), "it stays the pod's")
}

// TestContextEndsFind: a search for which there is no time left is not begun, and what is held counts neither as proven nor as another's.
func TestContextEndsFind(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.process(n.ns)
	s := newStore(t, n.o)
	pod := netnsstore.Pod{UID: n.uid, Addrs: []netip.Addr{addrA, addrB}}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Find(over, pod)
	require.ErrorIs(t, err, context.Canceled)
	ref, err := s.Find(t.Context(), pod)
	require.NoError(t, err)
	require.NoError(t, ref.Close())
	_, err = s.Find(over, pod)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, s.StillThere(over, pod)[n.uid], context.Canceled)
	ref = s.Get(n.uid)
	require.NotNil(t, ref, "it stays")
	require.NoError(t, ref.Close())
}
