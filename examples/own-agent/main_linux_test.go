package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/repair/integration/kubetest"
)

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

// node is a node's directories in a temporary one.
type node struct{ dir string }

func (n node) path(at string) string { return filepath.Join(n.dir, at) }

func (n node) list(t *testing.T) string {
	t.Helper()
	list, err := os.ReadFile(n.path("net.d/10-pods.conflist"))
	require.NoError(t, err)
	return string(list)
}

// attached leaves what containerd does of a pod whose network a list has set up.
func (n node) attached(t *testing.T, list string, pod *corev1.Pod) {
	t.Helper()
	attachment, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": "c-" + pod.Name, "ifName": "eth0", "networkName": "pods", "config": []byte(list),
		"netns":          "/var/run/netns/cni-6d4bd5a7-8f4b-7c1e-2b0a-0d7e0a5f9a11",
		"cniArgs":        [][2]string{{"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name}, {"K8S_POD_UID", string(pod.UID)}},
		"capabilityArgs": map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{}},
	})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(n.path("cache/results"), 0o700))
	require.NoError(t, os.WriteFile(n.path("cache/results/pods-c-"+pod.Name+"-eth0"), attachment, 0o600))
}

// start runs the agent beside the reporter until the plugin is in the network's list. stop ends it.
func start(t *testing.T, change func(*nodeagent.Config)) (n node, url string, log *proctest.Buffer, stop func()) {
	t.Helper()
	n = node{t.TempDir()}
	for at, data := range map[string]string{
		"image/acme-cni": "#!/bin/true\n", "bin/bridge": "#!/bin/true\n", "sa/token": "token", "sa/ca.crt": "CA",
		"net.d/10-pods.conflist": `{"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(n.path(at)), 0o700))
		require.NoError(t, os.WriteFile(n.path(at), []byte(data), 0o700)) //nolint:gosec // some are programs
	}
	s, log := kubetest.Shared(t), &proctest.Buffer{}
	env := map[string]string{"NODE_NAME": "node-1", "KUBERNETES_SERVICE_HOST": s.Address().Addr().String(), "KUBERNETES_SERVICE_PORT": strconv.Itoa(int(s.Address().Port()))}
	o := options(func(name string) string { return env[name] }, slog.New(slog.NewJSONHandler(log, nil)))
	c := &o.Config
	c.BinSourceDir, c.CNIBinDirs, c.CNIConfDir, c.CNICacheDir = n.path("image"), []string{n.path("bin")}, n.path("net.d"), n.path("cache")
	c.RunDir, c.ServiceAccountDir = n.path("run"), n.path("sa")
	change(c)
	var err error
	o.API, err = s.Config(kubetest.AdminToken)
	require.NoError(t, err)
	port, err := proctest.FreePort()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o, address, Reporter{Log: o.Log}.Run) }()
	require.Eventually(t, func() bool { return strings.Contains(n.list(t), `"acme-cni"`) }, netnstest.Patience, 5*time.Millisecond, "%s", log)
	return n, "http://" + address, log, func() {
		cancel()
		require.NoError(t, <-ended, "%s", log)
	}
}

// TestRun: a node gets the plugin, and keeps it when the agent ends. Meanwhile a pod that started without it is found, and the controller
// beside the agent hears of it.
func TestRun(t *testing.T) {
	n, url, log, stop := start(t, func(*nodeagent.Config) {})
	assert.FileExists(t, n.path("bin/acme-cni"))
	assert.Contains(t, n.list(t), `"acme"`)
	a := kubetest.Shared(t).Admin(t)
	pod := a.Create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace(t), Name: "cart"},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "cart", Image: "i"}, {Name: "acme-proxy", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
	})
	n.attached(t, `{"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`, pod)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), `"msg":"a pod needs attention"`) }, netnstest.Patience, 10*time.Millisecond, "%s", log)
	assert.Contains(t, log.String(), `"pod":"cart","state":"failed","reason":"not-called"`)
	said, err := agentapi.Client{URL: url}.Node(t.Context())
	require.NoError(t, err)
	require.Len(t, said.Pods, 1)
	assert.Equal(t, []string{"node-1", "v1.0.0", "acme", "cart"}, []string{said.Node, said.Version, said.Dialects[0], said.Pods[0].Name})
	ready, err := http.Get(url + "/readyz") //nolint:noctx // a test's own
	require.NoError(t, err)
	require.NoError(t, ready.Body.Close())
	assert.Equal(t, http.StatusOK, ready.StatusCode)
	stop()
	assert.FileExists(t, n.path("bin/acme-cni"), "the plugin stays, and pods wait")
}

// TestOwnPodKeepsNothing: told to take the plugin back, the agent does not wait for its own pod to end.
func TestOwnPodKeepsNothing(t *testing.T) {
	n, _, _, stop := start(t, func(c *nodeagent.Config) { c.UninstallOnExit = nodeagent.OnExitUninstall })
	n.attached(t, n.list(t), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "acme-system", Name: "acme-node-x2x"}})
	stop()
	assert.NoFileExists(t, n.path("bin/acme-cni"))
	assert.NotContains(t, n.list(t), "acme")
}

// TestSettingsThatCannotWork end it before it begins.
func TestSettingsThatCannotWork(t *testing.T) {
	o := options(func(string) string { return "" }, slog.New(slog.DiscardHandler))
	o.Config.Plugin.Dialects = []string{"istio"}
	err := run(t.Context(), o, "", Reporter{Log: o.Log}.Run)
	require.ErrorContains(t, err, `unknown dialect "istio": known is acme`)
}
