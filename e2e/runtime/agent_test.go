package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
)

const (
	agentNamespace = "meshcni-system"
	agentName      = "meshcni-node"
	agentUser      = "system:serviceaccount:" + agentNamespace + ":" + agentName
	runDir         = "/var/run/meshcni"
)

// plugin is the plugin's file on the host.
var plugin = filepath.Join(containerd.CNIBinDir, "meshcni")

// agent is the node agent in a container of our image, as its DaemonSet has it.
type agent struct {
	n *node
	*containerd.Sandbox
	url string
}

// agentPod is the DaemonSet's pod, with the host's paths and without a capability.
func agentPod(args ...string) *corev1.Pod {
	root, yes, no := int64(0), true, false
	pod := &corev1.Pod{ObjectMeta: podMeta(agentNamespace, agentName+"-x2x8p")}
	pod.UID = "a9e0"
	c := corev1.Container{
		Name: agentName, Image: image.Ours, Args: append([]string{"run"}, args...),
		Env: []corev1.EnvVar{
			{Name: "KUBERNETES_SERVICE_HOST", Value: serviceIP}, {Name: "KUBERNETES_SERVICE_PORT", Value: "443"},
			{Name: "NODE_NAME", Value: "node-1"},
			{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &root, RunAsGroup: &root, ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	mount := func(name, host, path string, readOnly bool) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}},
		})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: readOnly})
	}
	mount("run", runDir, runDir, false)
	mount("cni-bin", containerd.CNIBinDir, "/host"+containerd.CNIBinDir, false)
	mount("cni-conf", containerd.CNIConfDir, "/host"+containerd.CNIConfDir, false)
	mount("cni-cache", containerd.CNICache, "/host"+containerd.CNICache, true)
	mount("token", tokenDir, "/var/run/secrets/kubernetes.io/serviceaccount", true)
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

// tokenDir is what a kubelet mounts of the service account.
var tokenDir = filepath.Join(machine.Dir, "serviceaccount")

// grant makes the agent's service account, with the rights that it needs without
// repair, and its token.
func (n *node) grant(t testing.TB) {
	t.Helper()
	ignore := func(err error) {
		if err != nil {
			require.ErrorContains(t, err, "409")
		}
	}
	ignore(n.admin.Try(http.MethodPost, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentNamespace}}, nil))
	meta := metav1.ObjectMeta{Name: agentName}
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	ignore(n.admin.Try(http.MethodPost, rbac+"clusterroles", &rbacv1.ClusterRole{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
	}, nil))
	ignore(n.admin.Try(http.MethodPost, rbac+"clusterrolebindings", &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: agentName},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: agentNamespace, Name: agentName}},
	}, nil))
	token := n.admin.ServiceAccount(t, agentNamespace, agentName)
	ca, err := os.ReadFile(n.server.CAFile())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(tokenDir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tokenDir, "token"), []byte(token), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(tokenDir, "ca.crt"), ca, 0o600))
}

// runAgent starts the agent and waits until it is ready and the runtime has what
// it installed. At the test's end all pods are removed and it is uninstalled.
func (n *node) runAgent(t testing.TB, args ...string) *agent {
	t.Helper()
	n.grant(t)
	a := n.startAgent(t, args...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", a.Output(agentName))
		}
		assert.NoError(t, n.RemoveAll(ctx))
		// In the host's network, which takes no plugin to come and to go.
		pod := agentPod(args...)
		pod.Name, pod.Spec.HostNetwork, pod.Spec.Containers = agentName+"-last", true, nil
		s, err := n.RunPod(ctx, pod, nil)
		require.NoError(t, err)
		(&agent{n, s, ""}).uninstall(ctx, t, args...)
		assert.NoFileExists(t, plugin)
		assert.NoError(t, os.RemoveAll(runDir))
	})
	a.ready(t)
	return a
}

// startAgent starts the agent's pod.
func (n *node) startAgent(t testing.TB, args ...string) *agent {
	t.Helper()
	require.NoError(t, os.MkdirAll(runDir, 0o755))
	s, err := n.RunPod(t.Context(), agentPod(args...), nil)
	require.NoError(t, err)
	return n.newAgent(t, s)
}

func (n *node) newAgent(t testing.TB, s *containerd.Sandbox) *agent {
	t.Helper()
	ips, err := s.IPs(t.Context())
	require.NoError(t, err)
	return &agent{n, s, fmt.Sprintf("http://%s:8000", ips[0])}
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
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(string(text))
	}
	return err
}

// start starts the agent's container again after it ended.
func (a *agent) start(t testing.TB) {
	t.Helper()
	require.NoError(t, a.StartContainer(t.Context(), &a.Pod.Spec.Containers[0], nil))
}

// uninstall takes back what the agent installed, as an administrator does with the
// program of the same name, and returns what that says.
func (a *agent) uninstall(ctx context.Context, t testing.TB, args ...string) string {
	t.Helper()
	c := agentPod(args...).Spec.Containers[0]
	c.Name, c.Args[0] = "uninstall", "uninstall"
	before := a.Output(c.Name)
	require.NoError(t, a.StartContainer(ctx, &c, nil))
	code, err := a.WaitContainer(ctx, c.Name)
	require.NoError(t, err)
	said := strings.TrimPrefix(a.Output(c.Name), before)
	assert.Zero(t, code, "%s", said)
	a.n.waitNetworks(t, func(networks string) bool { return !strings.Contains(networks, "meshcni") })
	return said
}
