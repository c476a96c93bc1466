package podnetns_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestDelegatedGroup: a user to whom a control group was delegated makes one of the pod's name in it, and moves an older process there that
// has the pod's address in a namespace of its own.
func TestDelegatedGroup(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, podproctest.Cgroups)
	addr := netip.MustParseAddr("10.244.1.5")
	pod := podnetns.Wanted{Addrs: []netip.Addr{addr}}
	for name, c := range map[string]struct {
		group string // of the user, with the pod's in it
		owner string // of which part of it
	}{
		"cgroupfs":                     {"meshcni-test-user/kubepods/burstable/pod%s", "meshcni-test-user"},
		"systemd":                      {"meshcni-test-user/kubepods.slice/kubepods-pod%s.slice", "meshcni-test-user/kubepods.slice"},
		"the UID alone":                {"meshcni-test-user/pod%s", "meshcni-test-user"},
		"made by root, for anybody":    {"meshcni-test-user/kubepods/pod%s", ""},
		"below the kubelet's, and not": {"kubepods/meshcni-test-user/pod%s", "kubepods/meshcni-test-user"},
		"at its place, and the user's": {"kubepods/besteffort/pod%s", "kubepods/besteffort/pod"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			uid := podproctest.NewUID()
			put := podproctest.Plain
			if name == "systemd" {
				put = podproctest.Underscored
			}
			rename := strings.NewReplacer("-user", "-user-"+uid)
			group := put(rename.Replace(c.group), uid)
			theirs, own := netnstest.NewWorld(t, netnstest.Options{}).Pod, netnstest.NewWorld(t, netnstest.Options{}).Pod
			podproctest.Group(t, podproctest.Plain("kubepods/burstable/pod%s", uid)) // whose processes have all ended
			forged := podproctest.Start(t, theirs, group)
			if c.owner != "" {
				podproctest.Own(t, rename.Replace(c.owner), group, 1000)
			}
			_, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, pod)
			require.ErrorIs(t, err, podnetns.ErrNoProcess)
			require.ErrorContains(t, err, fmt.Sprintf("the control group of process %d has the pod's name, but is not the kubelet's", forged.Pid))
			owner, err := podnetns.Owner(podnetns.At("/proc"), forged.Pid)
			require.NoError(t, err)
			assert.Empty(t, owner)

			process := podproctest.Start(t, own, podproctest.Plain("kubepods/burstable/pod%s/5ad0d8f4", uid))
			got, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, pod)
			require.NoError(t, err)
			assert.Equal(t, process.Pid, got.PID)
			assert.Equal(t, own.ID().String(), got.NetNS)
		})
	}
}

// TestSeveralNamespaces: two namespaces of the pod's own processes have its address, so which is the pod's cannot be told.
func TestSeveralNamespaces(t *testing.T) {
	t.Parallel()
	uid := podproctest.NewUID()
	group := podproctest.Plain("kubepods/pod%s/5ad0d8f4", uid)
	pod := podnetns.Wanted{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}}
	podproctest.Start(t, netnstest.NewWorld(t, netnstest.Options{}).Pod, group)
	other := podproctest.Start(t, netnstest.NewWorld(t, netnstest.Options{}).Pod, group)
	_, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, pod)
	require.ErrorIs(t, err, podnetns.ErrSeveral)
	require.NoError(t, other.Kill())
	_, err = other.Wait()
	require.NoError(t, err)
	_, err = podnetns.Find(t.Context(), podnetns.At("/proc"), uid, pod)
	require.NoError(t, err)
}

// TestUserNamespaces: a network namespace that a process of the pod made in a user namespace of its own is not the pod's; that of a pod
// with users of its own is owned by theirs.
func TestUserNamespaces(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, podproctest.Cgroups)
	uid := podproctest.NewUID()
	addr := netip.MustParseAddr("127.0.0.1")
	group := podproctest.Plain("kubepods/pod%s/5ad0d8f4", uid)
	find := func(own bool) error {
		_, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{Addrs: []netip.Addr{addr}, OwnUsers: own})
		return err
	}
	start := func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}, GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}},
		}
		process := podproctest.StartCommand(t, cmd, nil, group)
		podproctest.Runs(t, process, "sleep")
	}
	start("ip link set lo up && exec unshare --user --map-root-user --net sh -c 'ip link set lo up && exec sleep infinity'")
	require.ErrorIs(t, find(false), podnetns.ErrUsers)
	require.ErrorIs(t, find(true), podnetns.ErrUsers, "a user namespace in the pod's")
	start("ip link set lo up && exec sleep infinity")
	require.ErrorIs(t, find(false), podnetns.ErrUsers)
	require.NoError(t, find(true))
}

// TestGroupsSeenFromAContainer: an agent in a control group namespace of its own, which is a container's, sees the groups of the node, and by
// its own pod's where the kubelet's are.
func TestGroupsSeenFromAContainer(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, podproctest.Cgroups)
	for name, root := range map[string]string{"the kubelet's default": "", "a root of the kubelet's": "meshcni-test-node-" + podproctest.NewUID() + "/"} {
		t.Run(name, func(t *testing.T) {
			agent, uid, forged := podproctest.NewUID(), podproctest.NewUID(), podproctest.NewUID()
			group := func(format, uid string) string { return podproctest.Group(t, podproctest.Plain(format, uid)) }
			pods := root + "kubepods/burstable/pod%s/5ad0d8f4"
			cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", `
				sh -c 'echo $$ >"$0/cgroup.procs" && exec unshare --net sleep infinity' "$1" &
				sh -c 'echo $$ >"$0/cgroup.procs" && exec unshare --net sleep infinity' "$2" &
				sh -c 'echo $$ >"$0/cgroup.procs" && exec unshare --cgroup "$@"' "$3" "$4" -test.run='^TestFindInAContainer$'`,
				"sh", group(pods, uid), group("meshcni-test-user/kubepods/burstable/pod%s/5ad0d8f4", forged), group(pods, agent), os.Args[0])
			cmd.Env = append(os.Environ(), containerEnv+"="+uid+" "+forged)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), "found it")
		})
	}
}

const containerEnv = "MESHCNI_TEST_CONTAINER"

// TestFindInAContainer is what TestGroupsSeenFromAContainer runs in a container.
func TestFindInAContainer(t *testing.T) {
	uid, forged, ok := strings.Cut(os.Getenv(containerEnv), " ")
	if !ok {
		return
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	require.NotContains(t, string(own), "kubepods", "hidden")
	find := func(uid string) error {
		_, err := podnetns.Find(t.Context(), podnetns.At("/proc"), uid, podnetns.Wanted{})
		return err
	}
	waittest.Eventually(t, "its namespace is found", func() error { return find(uid) })
	waittest.Eventually(t, "the other group is seen", func() error {
		if err := find(forged); err == nil || !strings.Contains(err.Error(), "but is not the kubelet's") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	fmt.Println("found it")
	now, err := os.ReadFile("/proc/thread-self/cgroup")
	require.NoError(t, err)
	assert.Equal(t, string(own), string(now), "the thread is back")
}

// TestGroupsWithoutAMount: an agent in a container, which has no mount of control groups and may not look into process 1's, mounts its own.
func TestGroupsWithoutAMount(t *testing.T) {
	t.Parallel()
	uid := podproctest.NewUID()
	group := podproctest.Plain("kubepods/meshcni-test-%s/own", uid)
	process := podproctest.Start(t, nil, group)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", process.Pid))
	require.NoError(t, err)
	controllers, dir := "", ""
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if strings.Contains(line, uid) {
			controllers, dir = fields[1], fields[2]
		}
	}
	require.NotEmpty(t, dir)
	require.NoError(t, podnetns.MadeUnmounted(controllers, dir))
	require.ErrorIs(t, podnetns.MadeUnmounted(controllers, dir+"/none"), os.ErrNotExist)
	podproctest.Own(t, group, group, 1000)
	require.ErrorIs(t, podnetns.MadeUnmounted(controllers, dir), podnetns.ErrTenants)
}
