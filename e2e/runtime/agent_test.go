package runtime

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const (
	agentNamespace = "meshcni-system"
	agentName      = "meshcni-node"
	agentUser      = "system:serviceaccount:" + agentNamespace + ":" + agentName
	pluginUser     = "system:serviceaccount:" + agentNamespace + ":meshcni-plugin"
	runDir         = "/var/run/meshcni"
	daemonSets     = "/apis/apps/v1/namespaces/" + agentNamespace + "/daemonsets"

	// agentPatience is how long a kubelet waits for the agent's end.
	agentPatience = 20 * time.Second
)

// plugin is the plugin's file on the host.
var plugin = filepath.Join(containerd.CNIBinDir, "meshcni")

// agent is the node agent in a container of our image, as its DaemonSet has it.
type agent struct {
	n *node
	*sandbox
	volumes map[string]string
}

// runAgent applies the manifest, starts the DaemonSet's pod with more flags, and
// waits until it is ready and the runtime has what it installed. At the test's end
// all pods are removed and the agent is uninstalled.
func (n *node) runAgent(t testing.TB, args ...string) *agent {
	t.Helper()
	return n.runAgentAs(t, func(*corev1.Pod) {}, args...)
}

// runAgentAs does the same with another pod than the manifest's.
func (n *node) runAgentAs(t testing.TB, change func(*corev1.Pod), args ...string) *agent {
	t.Helper()
	n.apply(t)
	pod := n.agentPod(t, "x2x8p", args...)
	change(pod)
	pod = n.create(t, pod)
	volumes := n.volumes(t, pod)
	s, err := n.RunPod(t.Context(), pod, volumes)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), netnstest.Patience)
		defer cancel()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", s.Output(agentName))
		}
		assert.NoError(t, n.RemoveAll(ctx))
		n.admin.Remove(t, agentNamespace, pod.Name)
		last := pod.DeepCopy()
		last.Name = agentName + "-last"
		last.Spec.Containers = nil
		s, err := n.RunPod(ctx, last, nil)
		require.NoError(t, err)
		(&agent{n, s, volumes}).uninstall(ctx, t, pod)
		assert.NoFileExists(t, plugin)
		requireNoPreinstalled(t)
		assert.NoError(t, os.RemoveAll(runDir))
	})
	a := &agent{n, s, volumes}
	a.ready(t)
	return a
}

// agentPod is a pod that the DaemonSet has: what its controller would make.
func (n *node) agentPod(t testing.TB, suffix string, args ...string) *corev1.Pod {
	t.Helper()
	var ds appsv1.DaemonSet
	n.admin.Do(t, http.MethodGet, daemonSets+"/"+agentName, nil, &ds)
	pod := &corev1.Pod{ObjectMeta: podMeta(agentNamespace, agentName+"-"+suffix), Spec: ds.Spec.Template.Spec}
	pod.Labels, pod.Annotations = ds.Spec.Template.Labels, ds.Spec.Template.Annotations
	pod.Spec.NodeName = "node-1"
	c := &pod.Spec.Containers[0]
	c.Args = append(c.Args, args...)
	return pod
}

// ready waits until the agent says that pods are captured, and until the runtime
// has read what the agent wrote.
func (a *agent) ready(t testing.TB) {
	t.Helper()
	eventually(t, "the agent is ready", func() error { return a.notReady(t.Context()) })
	a.n.waitNetworks(t, func(networks string) bool { return strings.Contains(networks, "meshcni") })
}

// notReady is why the agent is not ready, nil when it is.
func (a *agent) notReady(ctx context.Context) error {
	_, err := a.ask(ctx, "8000", "/readyz")
	return err
}

// ask returns an answer of the agent; one of another status than OK is the error.
func (a *agent) ask(ctx context.Context, port, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(string(text))
	}
	return string(text), err
}

// start starts the agent's container again after it ended.
func (a *agent) start(t testing.TB) {
	t.Helper()
	require.NoError(t, a.StartContainer(t.Context(), &a.Pod.Spec.Containers[0], a.volumes))
}

// stop ends the agent's container as a kubelet does.
func (a *agent) stop(t testing.TB) {
	t.Helper()
	require.NoError(t, a.StopContainer(t.Context(), agentName, agentPatience))
}

// uninstall takes back what the agent of a pod installed, as an administrator does
// with the program of the same name, and returns what that says.
func (a *agent) uninstall(ctx context.Context, t testing.TB, pod *corev1.Pod) string {
	t.Helper()
	c := pod.Spec.Containers[0].DeepCopy()
	c.Name, c.Args[0] = "uninstall", "uninstall"
	before := a.Output(c.Name)
	require.NoError(t, a.StartContainer(ctx, c, a.volumes))
	code, err := a.WaitContainer(ctx, c.Name)
	require.NoError(t, err)
	said := strings.TrimPrefix(a.Output(c.Name), before)
	assert.Zero(t, code, "%s", said)
	a.uninstalled(t)
	return said
}

// uninstalled waits until the runtime has the network without the plugin.
func (a *agent) uninstalled(t testing.TB) {
	t.Helper()
	a.n.waitNetworks(t, func(networks string) bool { return !strings.Contains(networks, "meshcni") })
}
