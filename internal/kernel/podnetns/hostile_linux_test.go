package podnetns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink/rttest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// unreadable fails for files of some processes.
type unreadable struct {
	proc
	files map[string]error
}

func (u unreadable) ReadFile(name string) ([]byte, error) {
	if err := u.files[name]; err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return u.proc.ReadFile(name)
}

// TestUnreadableProcess: what cannot be read of one process is no other pod's problem, whatever it is and whichever the process.
func TestUnreadableProcess(t *testing.T) {
	t.Parallel()
	victim, third := otherUID, strings.Replace(uid, "0b1c", "0b1d", 1)
	for _, file := range []string{"cgroup", "stat"} {
		for _, err := range []error{unix.ENAMETOOLONG, unix.EACCES, unix.EIO, unix.ENOMEM, unix.ESRCH, unix.ENOENT} {
			name := fmt.Sprint(file, ": ", err)
			u := unreadable{newProc(), map[string]error{}}
			u.add(10, "0::/kubepods/pod"+uid+"/1", 50, innerNS, "10.244.1.4")
			u.add(20, "0::/kubepods/pod"+victim+"/1", 100, podNS, "10.244.1.5")
			u.add(30, "0::/system.slice/sshd.service", 10, hostNS)
			u.files[path.Join("10", file)] = err
			u.files["30/cgroup"] = err
			all, findErr := podnetns.FindAll(t.Context(), u, map[string]podnetns.Wanted{
				uid: {Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.4")}}, victim: {Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}}, third: {},
			})
			require.NoError(t, findErr, name)
			require.NoError(t, all[victim].Err, name)
			assert.Equal(t, 20, all[victim].Found.PID, name)
			require.Error(t, all[uid].Err, name)
			require.ErrorIs(t, all[third].Err, podnetns.ErrNoProcess, name)
			if ended := errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT); !ended {
				require.ErrorIs(t, all[uid].Err, err, name)
			}

			// Another process of the pod leads there nevertheless.
			if file == "cgroup" {
				u.add(11, "0::/kubepods/pod"+uid+"/pause", 40, innerNS, "10.244.1.4")
				found, findErr := podnetns.Find(t.Context(), u, uid, podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.4")}})
				require.NoError(t, findErr, name)
				assert.Equal(t, 11, found.PID, name)
			}
		}
	}
}

// TestFindingsAreShort: a pod cannot fill logs and answers with its addresses or namespaces.
func TestFindingsAreShort(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	ns, uid := netnstest.New(t), podproctest.NewUID()
	const addrs = 3000
	rttest.Fill{Addrs: addrs}.Make(t, ns)
	podproctest.Start(t, ns, podproctest.Plain("kubepods/pod%s/5ad0d8f4", uid))
	_, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	require.ErrorIs(t, err, podnetns.ErrAddress)
	assert.Equal(t, 8, strings.Count(err.Error(), "10.20."), err)
	assert.Contains(t, err.Error(), "and more")
	has, err := podnetns.Has(t.Context(), ns, []netip.Addr{netip.MustParseAddr("10.20.0.5"), netip.MustParseAddr("10.20.11.183")})
	require.NoError(t, err)
	assert.Empty(t, has.Missing, "the last of them too")

	var many []netip.Addr
	for i := range 100 {
		many = append(many, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	assert.Equal(t, "[192.0.2.0 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.7] and 92 more", podnetns.Few(many))

	// Each namespace of its processes is a look, so they are counted.
	p := newProc()
	for i := range 100 {
		p.add(100+i, "0::/kubepods/pod"+uid+"/1", 100+i, fmt.Sprintf("net:[%d]", 5000+i), "10.0.0.1")
	}
	c := counting{proc: p, mu: &sync.Mutex{}, reads: map[string]int{}}
	_, err = podnetns.Find(t.Context(), c, uid, podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}})
	require.ErrorIs(t, err, podnetns.ErrLong)
	assert.Equal(t, 64, c.reads["Has"])
}

// TestManyRoutes: what a look costs does not grow with the routes of a pod: no file of /proc with them is read.
func TestManyRoutes(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	w := netnstest.NewWorld(t, netnstest.Options{})
	rttest.Fill{Routes: 200_000, Table: unix.RT_TABLE_MAIN}.Make(t, w.Pod)
	uid, other := podproctest.NewUID(), podproctest.NewUID()
	process := podproctest.Start(t, w.Pod, podproctest.Plain("kubepods/pod%s/5ad0d8f4", uid))
	neighbour := podproctest.Start(t, netnstest.New(t), podproctest.Plain("kubepods/pod%s/5ad0d8f4", other))
	c := reading{Proc: podnetns.At("/proc"), t: t}
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}
	all, err := podnetns.FindAll(t.Context(), c, map[string]podnetns.Wanted{uid: {Addrs: addrs}, other: {Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}})
	require.NoError(t, err)
	require.NoError(t, all[uid].Err)
	require.NoError(t, all[other].Err)
	assert.Equal(t, process.Pid, all[uid].Found.PID)
	assert.Equal(t, neighbour.Pid, all[other].Found.PID)
	assert.True(t, all[uid].Found.Same(c))
}

// reading lets no file be read that a pod can make large.
type reading struct {
	podnetns.Proc
	t *testing.T
}

func (r reading) Open(name string) (fs.File, error) {
	if _, file, _ := strings.Cut(name, "/"); file != "" {
		assert.Contains(r.t, []string{"cgroup", "stat"}, file)
	}
	return r.Proc.Open(name)
}

func (r reading) ReadLink(name string) (string, error) { return fs.ReadLink(r.Proc, name) }

func (r reading) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(r.Proc, name) }
