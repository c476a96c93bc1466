package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// reboot does to the machine what a loss of power does: no process of a pod is
// left, no namespace, no rule and nothing in /run, but all that was on the disk;
// and a runtime that starts with that. The API server is on another machine, as
// it were.
func (n *node) reboot(t testing.TB) {
	t.Helper()
	n.Kill()
	eventually(t, "pods' processes are gone", func() error {
		pids := podProcesses(t)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(pids) > 0 {
			return fmt.Errorf("processes %v", pids)
		}
		return nil
	})
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	_, disks := dirs()
	var points []string
	for line := range strings.Lines(string(mounts)) {
		point := strings.Fields(line)[1]
		if point == machine.Dir || strings.HasPrefix(point, machine.Dir+"/") {
			continue
		}
		for _, dir := range append(disks, "/run") {
			if strings.HasPrefix(point, dir+"/") {
				points = append(points, point)
			}
		}
	}
	slices.Reverse(points)
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); !errors.Is(err, unix.EINVAL) { // it went with its like elsewhere
			require.NoError(t, err, p)
		}
	}
	inRun, err := filepath.Glob("/run/*")
	require.NoError(t, err)
	for _, path := range inRun {
		if path != machine.Dir {
			require.NoError(t, os.RemoveAll(path))
		}
	}
	removeGroups(t)
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"-F", "-X"} {
			output(t, program, "-t", "nat", what)
		}
	}
	eventually(t, "interfaces went with their namespaces", func() error {
		if l := links(t); len(l) > 0 {
			return fmt.Errorf("interfaces %v", l)
		}
		return nil
	})
	require.NoError(t, n.Boot())
}

// monitors are the programs by which runtimes look after containers.
var monitors = []string{"containerd-shim-runc-v2", "conmon"}

// podProcesses are the containers' and those that look after them.
func podProcesses(t testing.TB) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, dir := range dirs {
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if strings.Contains(string(stat), ") Z ") {
			continue
		}
		if strings.Contains(string(groups), machine.CgroupParent()+"/pod") || slices.Contains(monitors, filepath.Base(exe)) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// removeGroups removes the control groups of containers that are no more.
func removeGroups(t testing.TB) {
	t.Helper()
	var dirs []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(pattern + machine.CgroupParent() + "/pod*")
		require.NoError(t, err)
		for _, top := range found {
			require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return err
			}))
		}
	}
	slices.Reverse(dirs)
	for _, dir := range dirs {
		eventually(t, "control group removed", func() error {
			err := syscall.Rmdir(dir)
			if errors.Is(err, syscall.ENOENT) {
				return nil
			}
			return err
		})
	}
}

// testReboot: the network still names the plugin, but its credentials were in
// /run. Pods of the mesh wait for the agent, which itself waits for nobody.
func testReboot(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	first := n.runAgent(t)
	ns := n.namespace(t)
	pods := n.runAll(t, meshed(ns, "one", withHostPort), meshed(ns, "two"), plain(ns, "three"))
	requireCaptured(t, pods[0])

	n.reboot(t)
	text, err := os.ReadFile(networkFile)
	require.NoError(t, err)
	require.Contains(t, string(text), "meshcni")
	require.NoFileExists(t, runDir+"/kubeconfig")
	n.waitNetworks(t, func(networks string) bool { return strings.Contains(networks, "meshcni") })

	// What a kubelet does with each pod: stop what is left of the old sandbox, and
	// make another.
	for _, s := range append(slices.Clone(pods), first.sandbox) {
		require.NoError(t, s.Stop(t.Context()), "DEL of what is no more")
	}
	for what, left := range leftovers(t) {
		assert.Empty(t, left, "%s left", what)
	}
	for _, s := range pods[:2] {
		_, err := s.Again(t.Context(), nil)
		require.ErrorContains(t, err, "is it running on this node?")
		require.ErrorContains(t, err, "kubeconfig")
	}
	free, err := pods[2].Again(t.Context(), nil)
	require.NoError(t, err, "a pod outside of the mesh needs no agent")
	requireFree(t, free)

	require.NoError(t, os.MkdirAll(runDir, 0o755))
	again, err := first.Again(t.Context(), first.volumes)
	require.NoError(t, err, "nor does the agent")
	a := &agent{n, again, first.volumes}
	first.sandbox = again // whose log to show
	a.ready(t)
	for _, s := range pods[:2] {
		require.NoError(t, s.Remove(t.Context()))
		up, err := s.Again(t.Context(), nil)
		require.NoError(t, err)
		requireCaptured(t, up)
	}
	assert.Equal(t, "proxy:15006", strings.Fields(fromHost(hostAt(nodeIP, hostPort)))[0])
}
