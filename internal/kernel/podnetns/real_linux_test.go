package podnetns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestRealProcesses finds the namespace of processes that the kernel has put into
// a pod's control groups, with a pod's addresses, and nothing else in common with a pod.
func TestRealProcesses(t *testing.T) {
	t.Parallel()
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}
	for name, dir := range map[string]string{
		"cgroupfs": "kubepods/besteffort/pod%s/5ad0d8f4",
		"systemd":  "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod%s.slice/cri-containerd-5ad0d8f4.scope",
	} {
		t.Run(name, func(t *testing.T) {
			uid := podproctest.NewUID()
			if name == "systemd" {
				dir = podproctest.Underscored(dir, uid)
			} else {
				dir = podproctest.Plain(dir, uid)
			}
			w := netnstest.NewWorld(t, netnstest.Options{})
			_, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{Addrs: addrs})
			require.ErrorIs(t, err, podnetns.ErrNoProcess)

			podproctest.Start(t, nil, dir) // a monitor, in the host's namespace
			_, err = podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{Addrs: addrs})
			require.ErrorIs(t, err, podnetns.ErrNoProcess)

			first := podproctest.Start(t, w.Pod, dir)
			podproctest.Start(t, w.Pod, dir)
			podproctest.Start(t, netnstest.New(t), dir) // a namespace that the pod made itself
			got, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{Addrs: addrs})
			require.NoError(t, err)
			assert.Equal(t, first.Pid, got.PID, "the oldest in the pod's namespace")
			assert.Equal(t, w.Pod.ID().String(), got.NetNS)

			ns, err := got.Open("/proc")
			require.NoError(t, err)
			defer func() { require.NoError(t, ns.Close()) }()
			assert.Equal(t, w.Pod.ID(), ns.ID())

			_, err = podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.99")}})
			require.ErrorIs(t, err, podnetns.ErrAddress)
			_, err = podnetns.Find(t.Context(), podnetns.At("/proc"), podproctest.NewUID(), podnetns.Wanted{Addrs: addrs})
			require.ErrorIs(t, err, podnetns.ErrNoProcess)
		})
	}
}

// TestNestedGroupOfAnotherPod: a container that makes a group with the name of
// another pod's below its own does not become that pod.
func TestNestedGroupOfAnotherPod(t *testing.T) {
	t.Parallel()
	for name, formats := range map[string][2]string{
		"cgroupfs": {"kubepods/burstable/pod%s/5ad0d8f4", "kubepods/burstable/pod%s/5ad0d8f4"},
		"systemd": {"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-5ad0d8f4.scope",
			"kubepods-burstable-pod%s.slice/cri-containerd-5ad0d8f4.scope"},
	} {
		t.Run(name, func(t *testing.T) {
			put := podproctest.Plain
			if name == "systemd" {
				put = podproctest.Underscored
			}
			victim, attacker := podproctest.NewUID(), podproctest.NewUID()
			theirs, own := netnstest.New(t), netnstest.New(t)
			nested := filepath.Join(put(formats[0], attacker), put(formats[1], victim))
			forged := podproctest.Start(t, theirs, nested) // the older one
			_, err := podnetns.Find(t.Context(), podnetns.At("/proc"), victim, podnetns.Wanted{})
			require.ErrorIs(t, err, podnetns.ErrNoProcess)

			process := podproctest.Start(t, own, put(formats[0], victim))
			got, err := podnetns.Find(t.Context(), podnetns.At("/proc"), victim, podnetns.Wanted{})
			require.NoError(t, err)
			assert.Equal(t, process.Pid, got.PID)
			assert.Equal(t, own.ID().String(), got.NetNS)
			got, err = podnetns.Find(t.Context(), podnetns.At("/proc"), attacker, podnetns.Wanted{})
			require.NoError(t, err)
			assert.Equal(t, forged.Pid, got.PID)
		})
	}
}

// TestGroupsTooLong: a process that has nested its groups until the kernel does not print their path hides itself at most, and no pod of
// the node.
func TestGroupsTooLong(t *testing.T) {
	t.Parallel()
	theirs, own := netnstest.New(t), netnstest.New(t)
	attacker, victim, absent := podproctest.NewUID(), podproctest.NewUID(), podproctest.NewUID()
	deep := podproctest.StartDeep(t, theirs, podproctest.Plain("kubepods/burstable/pod%s/5ad0d8f4", attacker))
	process := podproctest.Start(t, own, podproctest.Plain("kubepods/burstable/pod%s/5ad0d8f4", victim))
	all, err := podnetns.FindAll(t.Context(), podnetns.At("/proc"), map[string]podnetns.Wanted{attacker: {}, victim: {}, absent: {}})
	require.NoError(t, err)
	require.NoError(t, all[victim].Err)
	assert.Equal(t, process.Pid, all[victim].Found.PID)
	require.ErrorIs(t, all[absent].Err, podnetns.ErrNoProcess)
	if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", deep.Pid)); err != nil {
		require.ErrorIs(t, err, unix.ENAMETOOLONG)
		require.ErrorIs(t, all[attacker].Err, unix.ENAMETOOLONG)
		assert.ErrorContains(t, all[attacker].Err, fmt.Sprintf("look at process %d: ", deep.Pid))
	} else {
		require.NoError(t, all[attacker].Err)
		assert.Equal(t, deep.Pid, all[attacker].Found.PID)
	}
	ns, err := all[victim].Found.Open("/proc")
	require.NoError(t, err)
	assert.NoError(t, ns.Close())
}

func TestOpenProvesWhatFindSaw(t *testing.T) {
	t.Parallel()
	ns, uid := netnstest.New(t), podproctest.NewUID()
	dir := podproctest.Plain("kubepods/pod%s/5ad0d8f4", uid)
	process := podproctest.Start(t, ns, dir)
	found, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{})
	require.NoError(t, err)

	other := found
	other.Started++ // the same PID, used again
	_, err = other.Open("/proc")
	require.ErrorIs(t, err, podnetns.ErrChanged)

	require.NoError(t, process.Kill())
	_, err = process.Wait()
	require.NoError(t, err)
	_, err = found.Open("/proc")
	require.ErrorIs(t, err, podnetns.ErrChanged)
	require.ErrorIs(t, err, netnsexec.ErrGone)
}

// TestProcRootIsGiven uses a proc file system mounted elsewhere, as an agent's pod has it.
func TestProcRootIsGiven(t *testing.T) {
	t.Parallel()
	ns, uid := netnstest.New(t), podproctest.NewUID()
	podproctest.Start(t, ns, podproctest.Plain("kubepods/pod%s/5ad0d8f4", uid))
	root := filepath.Join(t.TempDir(), "proc")
	require.NoError(t, os.Mkdir(root, 0o755))
	require.NoError(t, exec.CommandContext(t.Context(), "mount", "-t", "proc", "proc", root).Run())
	t.Cleanup(func() { assert.NoError(t, exec.Command("umount", root).Run()) })
	found, err := podnetns.Find(t.Context(), podnetns.At(root), uid, podnetns.Wanted{})
	require.NoError(t, err)
	got, err := found.Open(root)
	require.NoError(t, err)
	assert.Equal(t, ns.ID(), got.ID())
	require.NoError(t, got.Close())
}

func BenchmarkFind(b *testing.B) {
	entries, err := os.ReadDir("/proc")
	require.NoError(b, err)
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	b.ReportMetric(float64(n), "processes")
	uid := podproctest.NewUID()
	start := time.Now()
	for b.Loop() {
		if _, err := podnetns.Find(b.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{}); !errors.Is(err, podnetns.ErrNoProcess) {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(start).Microseconds())/float64(b.N)/float64(n), "µs/process")
}

// BenchmarkFindAll reports how many searches for one pod a search for a full node's 110 costs.
func BenchmarkFindAll(b *testing.B) {
	wanted := map[string]podnetns.Wanted{}
	for range 110 {
		wanted[podproctest.NewUID()] = podnetns.Wanted{}
	}
	proc, one := podnetns.At("/proc"), podproctest.NewUID()
	var many, single time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := podnetns.FindAll(b.Context(), proc, wanted)
		require.NoError(b, err)
		middle := time.Now()
		_, err = podnetns.Find(b.Context(), proc, one, podnetns.Wanted{})
		require.ErrorIs(b, err, podnetns.ErrNoProcess)
		many, single = many+middle.Sub(start), single+time.Since(middle)
	}
	b.ReportMetric(float64(many)/float64(single), "×Find")
}
