package podnetns_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
)

const (
	uid      = "0b1c7d0e-6f1f-4e0c-9a55-2f0f6f8c3f11"
	otherUID = "0b1c7d0e-6f1f-4e0c-9a55-2f0f6f8c3f12"
	hostNS   = "net:[4026531840]"
	podNS    = "net:[4026532281]"
	innerNS  = "net:[4026532999]"
)

var (
	underscored      = strings.ReplaceAll(uid, "-", "_")
	otherUnderscored = strings.ReplaceAll(otherUID, "-", "_")
)

// proc is a proc file system made by hand.
type proc struct {
	fstest.MapFS
	addrs map[int][]netip.Addr // of each process's namespace
	made  map[string]error     // of control groups, where it is not nil; those of all pods are absent
}

// Groups implements [podnetns.Proc].
func (p proc) Groups(fn func(podnetns.Made) error) error {
	return fn(func(_, dir string) error {
		if err, known := p.made[dir]; known || path.Base(dir) != "kubepods" && path.Base(dir) != "kubepods.slice" {
			return err
		}
		return fs.ErrNotExist
	})
}

// Has implements [podnetns.Proc].
func (p proc) Has(ctx context.Context, f podnetns.Found, want podnetns.Wanted) (h podnetns.Held, err error) {
	has, there := p.addrs[f.PID]
	if !there {
		return h, podnetns.ErrChanged
	}
	for _, a := range want.Addrs {
		if !slices.Contains(has, a) {
			h.Missing = append(h.Missing, a)
		}
	}
	h.Others = has
	return h, nil
}

func newProc() proc {
	p := proc{fstest.MapFS{"uptime": {Data: []byte("1 1\n")}}, map[int][]netip.Addr{}, map[string]error{}}
	p.add(1, "0::/init.scope", 1, hostNS, "192.0.2.10")
	return p
}

func (p proc) add(pid int, cgroup string, started int, netns string, addrs ...string) {
	dir := fmt.Sprintf("%d/", pid)
	p.MapFS[dir+"cgroup"] = &fstest.MapFile{Data: []byte(cgroup + "\n")}
	p.MapFS[dir+"stat"] = &fstest.MapFile{Data: fmt.Appendf(nil,
		"%d (a) S 1 (b)) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 1000000 1\n", pid, started)}
	p.MapFS[dir+"ns/net"] = &fstest.MapFile{Data: []byte(netns), Mode: fs.ModeSymlink}
	p.addrs[pid] = []netip.Addr{}
	for _, a := range addrs {
		p.addrs[pid] = append(p.addrs[pid], netip.MustParseAddr(a))
	}
}

func TestCgroupPaths(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cgroup string
		found  bool
	}{
		"v2, systemd, burstable":                   {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice/cri-containerd-5ad0.scope", true},
		"v2, systemd, guaranteed":                  {"0::/kubepods.slice/kubepods-pod" + underscored + ".slice/crio-5ad0.scope", true},
		"v2, cgroupfs":                             {"0::/kubepods/burstable/pod" + uid + "/5ad0", true},
		"v2, the pod's own directory":              {"0::/kubepods/pod" + uid, true},
		"v2, cgroupfs, below no group of pods":     {"0::/pod" + uid + "/5ad0", false},
		"v2, further down than a class of service": {"0::/kubepods/burstable/besteffort/pod" + uid + "/5ad0", false},
		"v2, kubelet in a container":               {"0::/system.slice/docker-12ab.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + underscored + ".slice/cri-1.scope", true},
		"v2, nested below a container":             {"0::/kubepods/pod" + uid + "/5ad0/nested/deep", true},
		"v1, cgroupfs":                             {"12:pids:/kubepods/besteffort/pod" + uid + "/5ad0\n1:name=systemd:/kubepods/besteffort/pod" + uid + "/5ad0", true},
		"v1, systemd":                              {"12:cpu,cpuacct:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + underscored + ".slice/5ad0\n0::/", true},
		"v1, one hierarchy only":                   {"12:pids:/\n4:memory:/kubepods/pod" + uid + "/5ad0\n0::/", true},
		"v1, the other driver, of which our own pod's group would tell": {"4:memory:/system.slice/containerd.service/kubepods-besteffort-pod" + underscored + ".slice:cri-containerd:5ad0", false},
		"v2, below it one of another":                                   {"0::/kubepods/pod" + uid + "/5ad0/pod" + otherUID, true},
		"v2, a slice of another below":                                  {"0::/kubepods/pod" + uid + "/5ad0/kubepods.slice/kubepods-pod" + otherUnderscored + ".slice/x.scope", true},
		"v2, ours below another":                                        {"0::/kubepods/pod" + otherUID + "/5ad0/pod" + uid + "/5ad0", false},
		"v2, our slice below another":                                   {"0::/kubepods.slice/kubepods-pod" + otherUnderscored + ".slice/cri-1.scope/kubepods-pod" + underscored + ".slice/cri-2.scope", false},
		"v2, our slice below cgroupfs":                                  {"0::/kubepods/pod" + otherUID + "/5ad0/kubepods-burstable-pod" + underscored + ".slice", false},
		"v2, cgroup namespace, ours below another":                      {"0::/../../pod" + otherUID + "/5ad0/pod" + uid, false},
		"v2, nested kubelet's pod in another":                           {"0::/kubepods/pod" + otherUID + "/5ad0/docker/12ab/kubelet/kubepods/pod" + uid + "/5ad0", false},
		"v2, below a pod from a file":                                   {"0::/kubepods/pod8b3e4ac2a1b54f1f8d1d3a8a6a3e7c11/5ad0/pod" + uid, false},
		"v1, ours below another in one":                                 {"12:pids:/kubepods/pod" + otherUID + "/5ad0\n4:memory:/kubepods/pod" + otherUID + "/5ad0/pod" + uid, false},
		"v1, ours made where the kubelet makes none": {"12:pids:/kubepods/pod" + otherUID + "/5ad0\n1:name=systemd:/kubepods/pod" + otherUID +
			"/5ad0\n0::/pod" + uid, false},
		"v1, another made where the kubelet makes none": {"12:pids:/kubepods/pod" + uid + "/5ad0\n0::/kubepods/pod" + otherUID, false},
		"a part that only begins like a pod's":          {"0::/podman/kubepods/pod" + uid + "/5ad0", true},
		"another pod":                                   {"0::/kubepods/burstable/pod" + otherUID + "/5ad0", false},
		"longer UID":                                    {"0::/kubepods/pod" + uid + "0/5ad0", false},
		"UID of a volume, say":                          {"0::/system.slice/run-" + uid + ".scope", false},
		"the host":                                      {"0::/system.slice/sshd.service", false},
		"empty":                                         {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProc()
			p.add(4242, c.cgroup, 100, podNS, "10.244.1.5")
			got, err := podnetns.Find(t.Context(), p, uid, podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
			if !c.found {
				require.ErrorIs(t, err, podnetns.ErrNoProcess)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, podnetns.Found{UID: uid, PID: 4242, Started: 100, NetNS: podNS}, got)
			assert.Equal(t, "4242/ns/net", got.Path())
		})
	}
}

// TestNodeInAPod: where the node itself runs in another cluster's pod, that pod is in
// the path of each of its processes, and theirs comes after it.
func TestNodeInAPod(t *testing.T) {
	t.Parallel()
	const node = "/kubepods/pod" + otherUID + "/5ad0"
	for name, c := range map[string]struct {
		first, cgroup string
		found         bool
	}{
		"v2":                    {"0::" + node + "/docker/12ab/init.scope", "0::" + node + "/docker/12ab/kubelet/kubepods/pod" + uid + "/5ad0", true},
		"v2, one more cluster":  {"0::" + node + "/kubelet/kubepods/pod" + strings.Repeat("a", 32) + "/init", "0::" + node + "/kubelet/kubepods/pod" + strings.Repeat("a", 32) + "/x/kubepods/pod" + uid, true},
		"v2, of another pod":    {"0::" + node, "0::" + node + "/kubepods/pod" + strings.Repeat("a", 32) + "/x/pod" + uid, false},
		"v1":                    {"4:memory:" + node + "\n1:name=systemd:/", "4:memory:" + node + "/kubepods/pod" + uid + "\n1:name=systemd:/kubepods/pod" + uid, true},
		"v1, one hierarchy":     {"4:memory:" + node, "5:pids:" + node + "/kubepods/pod" + uid, false},
		"process 1 not visible": {"", "0::" + node + "/kubepods/pod" + uid, false},
	} {
		p := newProc()
		p.add(1, c.first, 1, hostNS)
		if c.first == "" {
			delete(p.MapFS, "1/cgroup")
		}
		p.add(4242, c.cgroup, 100, podNS)
		got, err := podnetns.Find(t.Context(), p, uid, podnetns.Wanted{})
		if !c.found {
			assert.ErrorIs(t, err, podnetns.ErrNoProcess, name)
			continue
		}
		require.NoError(t, err, name)
		assert.Equal(t, 4242, got.PID, name)
		assert.True(t, got.Same(p), name)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	const ctr = "0::/kubepods/pod" + uid + "/5ad0"
	addr4, addr6 := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")
	for name, c := range map[string]struct {
		fill  func(proc)
		uid   string
		addrs []netip.Addr
		pid   int
		err   error
	}{
		"oldest of several": {fill: func(p proc) {
			p.add(10, ctr, 300, podNS, "10.244.1.5")
			p.add(900, ctr, 200, podNS, "10.244.1.5")
			p.add(20, ctr, 250, podNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, pid: 900},
		"younger one made its own namespace": {fill: func(p proc) {
			p.add(10, ctr, 300, innerNS, "172.17.0.2")
			p.add(11, ctr, 200, podNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, pid: 11},
		"the oldest left for its own namespace": {fill: func(p proc) {
			p.add(10, ctr, 100, innerNS, "172.17.0.2")
			p.add(11, ctr, 200, podNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, pid: 11},
		"the runtime's monitor is in the host's": {fill: func(p proc) {
			p.add(10, ctr, 100, hostNS, "192.0.2.10")
			p.add(11, ctr, 200, podNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, pid: 11},
		"our own, where that of process 1 cannot be seen": {fill: func(p proc) {
			delete(p.MapFS, "1/ns/net")
			p.MapFS["self/ns/net"] = &fstest.MapFile{Data: []byte(hostNS), Mode: fs.ModeSymlink}
			p.add(10, ctr, 100, hostNS, "10.244.1.5")
			p.add(11, ctr, 200, podNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, pid: 11},
		"only the monitor": {fill: func(p proc) { p.add(10, ctr, 100, hostNS, "192.0.2.10") }, err: podnetns.ErrNoProcess},
		"host network, address or not": {fill: func(p proc) { p.add(10, ctr, 100, hostNS, "10.244.1.5") }, addrs: []netip.Addr{addr4},
			err: podnetns.ErrNoProcess},
		"another pod has the address": {fill: func(p proc) {
			p.add(10, "0::/kubepods/pod"+otherUID+"/1", 100, innerNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, err: podnetns.ErrNoProcess},
		"address is not there": {fill: func(p proc) { p.add(10, ctr, 100, podNS, "10.244.1.6") }, addrs: []netip.Addr{addr4},
			err: podnetns.ErrAddress},
		"both families": {fill: func(p proc) { p.add(10, ctr, 100, podNS, "10.244.1.5", "fd00:10:244::5") },
			addrs: []netip.Addr{addr6, addr4}, pid: 10},
		"one family is missing": {fill: func(p proc) { p.add(10, ctr, 100, podNS, "10.244.1.5") },
			addrs: []netip.Addr{addr4, addr6}, err: podnetns.ErrAddress},
		"two namespaces have the address": {fill: func(p proc) {
			p.add(10, ctr, 100, innerNS, "10.244.1.5")
			p.add(11, ctr, 200, podNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, err: podnetns.ErrSeveral},
		"two namespaces, no address known": {fill: func(p proc) {
			p.add(10, ctr, 100, innerNS)
			p.add(11, ctr, 200, podNS)
		}, err: podnetns.ErrSeveral},
		"no addresses known": {fill: func(p proc) { p.add(10, ctr, 100, podNS) }, pid: 10},
		"ended before its addresses were asked for": {fill: func(p proc) {
			p.add(10, ctr, 100, podNS, "10.244.1.5")
			delete(p.addrs, 10)
			p.add(11, ctr, 200, podNS, "10.244.1.5")
		}, addrs: []netip.Addr{addr4}, pid: 11},
		"ended between two reads": {fill: func(p proc) {
			p.add(10, ctr, 100, podNS, "10.244.1.5")
			delete(p.MapFS, "10/stat")
			p.add(11, ctr, 200, podNS, "10.244.1.5")
			p.add(12, ctr, 50, innerNS, "10.244.1.5")
			delete(p.MapFS, "12/ns/net")
		}, addrs: []netip.Addr{addr4}, pid: 11},
		"zombie": {fill: func(p proc) {
			p.add(10, ctr, 100, podNS, "10.244.1.5")
			s := p.MapFS["10/stat"]
			s.Data = []byte(strings.Replace(string(s.Data), ") S 1 1", ") Z 1 1", 1))
		}, err: podnetns.ErrNoProcess},
		"empty UID":    {fill: func(p proc) { p.add(10, "0::/kubepods/pod", 100, podNS) }, uid: "-", err: podnetns.ErrUID},
		"UID of slash": {fill: func(proc) {}, uid: "../../../../etc/passwd", err: podnetns.ErrUID},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProc()
			c.fill(p)
			if c.uid == "" {
				c.uid = uid
			}
			got, err := podnetns.Find(t.Context(), p, c.uid, podnetns.Wanted{Addrs: c.addrs})
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				assert.Contains(t, err.Error(), c.uid)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.pid, got.PID)
		})
	}
}

// counting counts what is read of a proc file system, by the files' names.
type counting struct {
	proc
	mu    *sync.Mutex
	reads map[string]int
}

func (c counting) Has(ctx context.Context, f podnetns.Found, want podnetns.Wanted) (podnetns.Held, error) {
	c.mu.Lock()
	c.reads["Has"]++
	c.mu.Unlock()
	return c.proc.Has(ctx, f, want)
}

func (c counting) Open(name string) (fs.File, error) {
	c.reads[path.Base(name)]++
	return c.proc.Open(name)
}

func (c counting) ReadDir(name string) ([]fs.DirEntry, error) {
	c.reads[path.Base(name)]++
	return c.proc.ReadDir(name)
}

func (c counting) ReadFile(name string) ([]byte, error) {
	c.reads[path.Base(name)]++
	return c.proc.ReadFile(name)
}

// TestFindAllReadsOnce: many pods cost no more than one, apart from their own processes.
func TestFindAllReadsOnce(t *testing.T) {
	t.Parallel()
	const pods, strangers = 110, 300
	c := counting{newProc(), &sync.Mutex{}, map[string]int{}}
	wanted := map[string]podnetns.Wanted{}
	for i := range pods {
		uid := fmt.Sprintf("0b1c7d0e-6f1f-4e0c-9a55-%012x", i)
		a := netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
		wanted[uid] = podnetns.Wanted{Addrs: []netip.Addr{a}}
		c.add(1000+i, "0::/kubepods/pod"+uid+"/5ad0", 100, fmt.Sprintf("net:[%d]", 1000+i), a.String())
	}
	for i := range strangers {
		c.add(5000+i, "0::/kubepods/pod"+otherUID+"/5ad0", 100, podNS)
	}
	wanted[uid], wanted["../x"] = podnetns.Wanted{}, podnetns.Wanted{}
	all, err := podnetns.FindAll(t.Context(), c, wanted)
	require.NoError(t, err)
	require.Len(t, all, pods+2)
	require.ErrorIs(t, all[uid].Err, podnetns.ErrNoProcess)
	require.ErrorIs(t, all["../x"].Err, podnetns.ErrUID)
	for uid, w := range wanted {
		if len(w.Addrs) > 0 {
			require.NoError(t, all[uid].Err)
			assert.Equal(t, 1000+int(w.Addrs[0].As4()[3]), all[uid].Found.PID)
		}
	}
	assert.Equal(t, map[string]int{".": 1, "cgroup": 2 + pods + strangers, "stat": pods, "Has": pods}, c.reads)
}

// TestFindAllKeepsErrorsApart: what cannot be read of one pod's process is no error of another pod.
func TestFindAllKeepsErrorsApart(t *testing.T) {
	t.Parallel()
	p := newProc()
	p.add(10, "0::/kubepods/pod"+uid+"/1", 100, podNS)
	p.add(11, "0::/kubepods/pod"+otherUID+"/1", 100, innerNS)
	p.MapFS["10/stat"].Data = []byte("10 (x) S 1\n")
	all, err := podnetns.FindAll(t.Context(), p, map[string]podnetns.Wanted{uid: {}, otherUID: {}})
	require.NoError(t, err)
	require.ErrorContains(t, all[uid].Err, "malformed stat")
	require.NoError(t, all[otherUID].Err)
	assert.Equal(t, 11, all[otherUID].Found.PID)
	all, err = podnetns.FindAll(t.Context(), p, nil)
	require.NoError(t, err)
	assert.Empty(t, all)
}

func TestFindSaysWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	p := newProc()
	delete(p.MapFS, "1/ns/net")
	_, err := podnetns.Find(t.Context(), p, uid, podnetns.Wanted{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "the host's namespace")

	p = newProc()
	p.add(10, "0::/kubepods/pod"+uid+"/1", 100, podNS)
	p.MapFS["10/stat"].Data = []byte("10 (x) S 1\n")
	_, err = podnetns.Find(t.Context(), p, uid, podnetns.Wanted{})
	assert.ErrorContains(t, err, "malformed stat")
}

func TestSame(t *testing.T) {
	t.Parallel()
	p := newProc()
	p.add(10, "0::/kubepods/pod"+uid+"/1", 100, podNS, "10.244.1.5")
	found, err := podnetns.Find(t.Context(), p, uid, podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	require.NoError(t, err)
	assert.True(t, found.Same(p))
	assert.False(t, podnetns.Found{}.Same(p))
	for name, change := range map[string]func(){
		"another process of the PID": func() { p.add(10, "0::/kubepods/pod"+uid+"/1", 101, podNS, "10.244.1.5") },
		"moved":                      func() { p.add(10, "0::/kubepods/pod"+uid+"/1", 100, innerNS, "10.244.1.5") },
		"ended":                      func() { delete(p.MapFS, "10/stat") },
	} {
		change()
		assert.False(t, found.Same(p), name)
	}
}

// TestWhoseGroups: a control group of a pod's name is the pod's only where the kubelet makes those of pods, which our own pod's tells, and
// if root alone could make it.
func TestWhoseGroups(t *testing.T) {
	t.Parallel()
	const tenant, kind = "/user.slice/user-1000.slice/user@1000.service/app.slice", "/docker/12ab"
	notRoots, unread := podnetns.ErrTenants, errors.New("cannot be read")
	ours := "/pod" + otherUID + "/1"
	for name, c := range map[string]struct {
		own, cgroup string // "": we are in no pod
		made        map[string]error
		found       bool
		says        string
	}{
		"delegated":                   {cgroup: "0::" + tenant + "/kubepods/pod" + uid, made: map[string]error{tenant + "/kubepods/pod" + uid: notRoots}, says: "not the kubelet's"},
		"delegated, no group of pods": {cgroup: "0::" + tenant + "/pod" + uid, says: "not the kubelet's"},
		"delegated, our own pod":      {own: "0::/kubepods/burstable" + ours, cgroup: "0::" + tenant + "/kubepods/burstable/pod" + uid, says: "not the kubelet's"},
		"delegated at the kubelet's":  {cgroup: "0::/kubepods/pod" + uid, made: map[string]error{"/kubepods/pod" + uid: notRoots}, says: "not the kubelet's"},
		"delegated, v1":               {cgroup: "4:memory:/user.slice\n1:name=systemd:" + tenant + "/pod" + uid, says: "not the kubelet's"},
		"root in another container":   {cgroup: "0::" + kind + "/kubepods/pod" + uid, made: map[string]error{"/kubepods": nil}, says: "not the kubelet's"},
		"the same, systemd":           {cgroup: "0::" + kind + "/kubepods/pod" + uid, made: map[string]error{"/kubepods.slice": nil}, says: "not the kubelet's"},
		"the same, from a pod":        {own: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + otherUnderscored + ".slice/cri-1.scope", cgroup: "0::" + kind + "/kubepods/pod" + uid, says: "not the kubelet's"},
		"a root of the kubelet's":     {cgroup: "0::/machine/kubepods/besteffort/pod" + uid + "/1", found: true},
		"the same, from a pod of it":  {own: "0::/machine/kubepods" + ours, cgroup: "0::/machine/kubepods/besteffort/pod" + uid + "/1", made: map[string]error{"/kubepods": nil}, found: true},
		"a nested node, v2":           {own: "0::" + kind + "/kubelet/kubepods" + ours, cgroup: "0::" + kind + "/kubelet/kubepods/burstable/pod" + uid + "/1", found: true},
		"a nested node, systemd": {own: "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + otherUnderscored + ".slice/cri-1.scope",
			cgroup: "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + underscored + ".slice/cri-2.scope", found: true},
		"v1, from a pod": {own: "4:memory:/kubepods" + ours + "\n1:name=systemd:/", cgroup: "4:memory:/kubepods/pod" + uid + "/1\n1:name=systemd:/", found: true},
		"v1, where ours has none": {own: "4:memory:/kubepods" + ours + "\n1:name=systemd:/", cgroup: "4:memory:/\n1:name=systemd:/kubepods/pod" + uid,
			says: "not the kubelet's"},
		"v1, the other driver": {own: "4:memory:/system.slice/containerd.service/kubepods-pod" + otherUnderscored + ".slice:cri-containerd:1",
			cgroup: "4:memory:/system.slice/containerd.service/kubepods-besteffort-pod" + underscored + ".slice:cri-containerd:5ad0", found: true},
		"no pod's is above ours": {own: "0::/system.slice/meshcni.service", cgroup: "0::/kubepods/pod" + uid, found: true},
		"cannot be read":         {cgroup: "0::/kubepods/pod" + uid, made: map[string]error{"/kubepods/pod" + uid: unread}, says: "cannot be read"},
		"gone":                   {cgroup: "0::/kubepods/pod" + uid, made: map[string]error{"/kubepods/pod" + uid: fs.ErrNotExist}},
	} {
		p := newProc()
		if c.own != "" {
			p.MapFS["self/cgroup"] = &fstest.MapFile{Data: []byte(c.own + "\n")}
		}
		p.add(10, c.cgroup, 100, podNS, "10.244.1.5")
		maps.Copy(p.made, c.made)
		got, err := podnetns.Find(t.Context(), p, uid, podnetns.Wanted{})
		if c.found {
			require.NoError(t, err, name)
			assert.Equal(t, 10, got.PID, name)
			continue
		}
		require.Error(t, err, name)
		require.ErrorContains(t, err, c.says, name)
		assert.Equal(t, c.says != "cannot be read", errors.Is(err, podnetns.ErrNoProcess), name)
	}
}
