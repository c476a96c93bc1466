package runtime

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/crio"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The machine's addresses. Elsewhere is what pods reach without a proxy; nowhere
// is what nobody has, so that an answer from there is a proxy's.
const (
	nodeIP     = "10.89.0.1"
	serviceIP  = "10.77.0.1"
	elsewhere4 = "192.0.2.10"
	elsewhere6 = "2001:db8::10"
	nowhere4   = "10.96.5.5"
	nowhere6   = "fd00:96::5"
)

func TestMain(m *testing.M) {
	empty, disks := dirs()
	o := machine.Options{
		Needs: []netnstest.Need{kubetest.Servers, netnstest.IPv6},
		Empty: append(empty, "/run/meshcni"), Memory: disks,
		Build: image.Build,
	}
	for _, a := range []string{nodeIP, serviceIP, elsewhere4, elsewhere6} {
		o.Addresses = append(o.Addresses, netip.MustParseAddr(a))
	}
	machine.Main(m, o)
}

// dirs are the directories that start empty, and those where the runtimes keep what a reboot leaves.
func dirs() (empty, disks []string) {
	empty, disks = containerd.Dirs()
	return empty, append(disks, crio.Memory()...)
}

// node is the machine with a runtime and an API server, which all tests share and
// none runs beside another on.
type node struct {
	containerRuntime
	kind     kind
	runtimes map[string]containerRuntime // those that have been started, by name; one of them runs
	server   *kubetest.Server
	admin    *kubetest.Admin
	// networks counts those that there have been, for names.
	networks int
}

var (
	nodeOnce   sync.Once
	sharedNode *node
	errNode    error
)

// boot starts what runs on the machine but the runtime.
func boot() (*node, error) {
	n := &node{runtimes: map[string]containerRuntime{}}
	if err := elsewhere(); err != nil {
		return nil, err
	}
	dir := filepath.Join(machine.Dir, "kube")
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		n.server, err = kubetest.Start(dir, kubetest.Options{Bind: netip.IPv4Unspecified(), Advertise: netip.MustParseAddr(nodeIP), Port: 443})
	}
	return n, err
}

// runOn makes the kind of runtime the one that runs.
func (n *node) runOn(t testing.TB, k kind) {
	t.Helper()
	running := n.kind.name
	n.kind = k
	if running == k.name {
		return
	}
	if running != "" {
		n.Kill()
	}
	n.emptyNetworks(t)
	if started := n.runtimes[k.name]; started != nil {
		n.containerRuntime = started
		require.NoError(t, n.Boot())
		return
	}
	var err error
	n.containerRuntime, err = k.start()
	require.NoError(t, err)
	n.runtimes[k.name] = n.containerRuntime
}

// newNode returns the machine's, with the kind of runtime, a network and the
// plugins for it. What the test leaves of sandboxes is removed at its end, and
// nothing else may be left.
func newNode(t testing.TB, k kind, network string) *node {
	t.Helper()
	machine.Require(t)
	netnstest.Require(t, k.need)
	nodeOnce.Do(func() { sharedNode, errNode = boot() })
	require.NoError(t, errNode)
	n := sharedNode
	n.runOn(t, k)
	n.admin = n.server.Admin(t)
	if err := n.admin.Try(http.MethodPost, "/api/v1/nodes", corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"kubernetes.io/os": "linux"}}}, nil); err != nil {
		require.ErrorContains(t, err, "409", "an earlier test's")
	}
	programs := map[string]string{recorder: image.ToolProgram()}
	for _, name := range []string{"loopback", "ptp", "bridge", "host-local", "portmap"} {
		programs[name] = filepath.Join(k.plugins, name)
	}
	for name, program := range programs {
		path := filepath.Join(containerd.CNIBinDir, name)
		if to, _ := os.Readlink(path); to != program {
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.Symlink(program, path))
		}
	}
	n.setNetwork(t, network)
	from := len(n.Log())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s's log:\n%s", k.name, excerpt(n.Log()[from:]))
			plugin, _ := os.ReadFile(filepath.Join(runDir, "plugin.log"))
			t.Logf("the plugin's log:\n%s", plugin[max(0, len(plugin)-4000):])
		}
		n.cleanUp(t)
	})
	return n
}

// excerpt is what of a runtime's log says that something went wrong.
func excerpt(log string) string {
	var lines []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=error") || strings.Contains(line, "level=warn") || strings.Contains(line, "level=fatal") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-20):], "")
}

// setNetwork makes a network the only one, and waits until the runtime has it.
func (n *node) setNetwork(t testing.TB, network string) {
	t.Helper()
	n.emptyNetworks(t)
	n.networks++
	name := n.network() // the runtime has this one when it says its name
	require.NoError(t, os.WriteFile(networkFile, []byte(n.named(network)), 0o600))
	n.waitNetworks(t, func(networks string) bool { return strings.Contains(networks, name) })
	eventually(t, "the network is ready", func() error { return n.NetworkReady(t.Context()) })
}

func (n *node) emptyNetworks(t testing.TB) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(containerd.CNIConfDir, "*"))
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, os.Remove(f))
	}
}

// network is the present network's name.
func (n *node) network() string { return fmt.Sprintf("net-%d", n.networks) }

// networkFile is the network that the agent chains into.
var networkFile = filepath.Join(containerd.CNIConfDir, "10-net.conflist")

// waitNetworks waits until the runtime's networks are as wanted.
func (n *node) waitNetworks(t testing.TB, wanted func(string) bool) {
	t.Helper()
	eventually(t, "the runtime has the network", func() error {
		networks, err := n.Networks(context.Background()) // also after the test
		if err == nil && !wanted(networks) {
			err = fmt.Errorf("it has %s", networks)
		}
		return err
	})
}

// eventually waits until f finds nothing wrong.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	require.NoError(t, proctest.Poll(netnstest.Patience, f), what)
}

// namespace makes a namespace with the service account that pods have.
func (n *node) namespace(t testing.TB) string {
	t.Helper()
	ns := n.admin.Namespace(t)
	n.admin.ServiceAccount(t, ns, "default")
	return ns
}

// create makes the API server serve the pod.
func (n *node) create(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	made := &corev1.Pod{}
	n.admin.Do(t, http.MethodPost, "/api/v1/namespaces/"+pod.Namespace+"/pods", pod, made)
	return made
}

// runAll creates the pods and starts them, at the same time.
func (n *node) runAll(t testing.TB, pods ...*corev1.Pod) []*sandbox {
	t.Helper()
	sandboxes := make([]*sandbox, len(pods))
	var g errgroup.Group
	for i, pod := range pods {
		made := n.create(t, pod)
		g.Go(func() (err error) {
			sandboxes[i], err = n.RunPod(t.Context(), made, nil)
			return err
		})
	}
	require.NoError(t, g.Wait())
	return sandboxes
}

// run creates the pod and starts it.
func (n *node) run(t testing.TB, pod *corev1.Pod) *sandbox {
	t.Helper()
	s, err := n.RunPod(t.Context(), n.create(t, pod), nil)
	require.NoError(t, err)
	return s
}

// cleanUp removes all sandboxes, and fails the test when something of them is left.
func (n *node) cleanUp(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), netnstest.Patience)
	defer cancel()
	assert.NoError(t, n.RemoveAll(ctx))
	n.nothingLeft(t)
}

// nothingLeft looks for what sandboxes that are gone should have taken along.
func (n *node) nothingLeft(t testing.TB) {
	t.Helper()
	for what, left := range leftovers(t) {
		assert.Empty(t, left, "%s left", what)
	}
	assert.NotContains(t, output(t, "nft", "list", "ruleset"), "meshcni", "a table of ours on the host")
}

// leftovers are what the machine has because of sandboxes.
func leftovers(t testing.TB) map[string][]string {
	t.Helper()
	found := map[string][]string{"veth interfaces": links(t)}
	for what, pattern := range map[string]string{
		"network namespaces":     "/run/netns/*",
		"attachments in a cache": containerd.CNICache + "/results/*",
		"addresses in use":       containerd.CNICache + "/networks/*/[0-9f]*",
		"control groups":         "/sys/fs/cgroup/*" + machine.CgroupParent() + "/pod*/*/cgroup.procs",
	} {
		var err error
		found[what], err = filepath.Glob(pattern)
		require.NoError(t, err)
	}
	// A CRI-O that was killed does not know the groups of its conmons any more. A kubelet removes them with the pod's.
	found["control groups"] = slices.DeleteFunc(found["control groups"], func(path string) bool {
		return strings.Contains(path, "/crio-conmon-")
	})
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(output(t, program)) {
			if strings.Contains(line, "10.88.") || strings.Contains(line, "fd00:88:") || strings.Contains(line, "ISTIO_") {
				found["host's rules"] = append(found["host's rules"], line)
			}
		}
	}
	return found
}
