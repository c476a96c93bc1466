package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// tokens is a namespace with the agent, its pod, and the plugin's account, on a node of its own.
type tokens struct {
	*admin
	s                 *kubetest.Server
	ns, node          string
	dirs              nodeDirs
	agent             *process
	agentUser, plugin string // as the audit log has them
}

func (w *tokens) accounts() string { return "/api/v1/namespaces/" + w.ns + "/serviceaccounts" }

func newTokens(t testing.TB) *tokens {
	t.Helper()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	w := &tokens{s: kubetest.Shared(t)}
	w.admin = newAdmin(t, w.s)
	w.ns = w.Namespace(t)
	w.node = "node-" + w.ns
	w.agentUser, w.plugin = "system:serviceaccount:"+w.ns+":meshcni-node", "system:serviceaccount:"+w.ns+":meshcni-plugin"
	w.makeNode(t)
	w.ServiceAccount(t, w.ns, "meshcni-node")
	w.Create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "meshcni-node-x"}, Spec: corev1.PodSpec{
		ServiceAccountName: "meshcni-node", NodeName: w.node, Containers: []corev1.Container{{Name: "agent", Image: "meshcni/meshcni:test"}},
	}})
	w.Create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "cart"}, Spec: corev1.PodSpec{
		NodeName: w.node, Containers: []corev1.Container{{Name: "app", Image: "app"}},
	}})
	// As the kubelet projects it: bound to the pod.
	seconds := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "meshcni-node-x"},
	}}
	w.Do(t, http.MethodPost, w.accounts()+"/meshcni-node/token", request, request)
	w.dirs = newNodeDirs(t, w.s, request.Status.Token)
	return w
}

func (w *tokens) makeNode(t testing.TB) {
	t.Helper()
	w.Do(t, http.MethodPost, "/api/v1/nodes", corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node}}, nil)
}

// grant makes what deploy/rbac/plugin.yaml and other files there say, in the namespace and with the cluster's objects under names of their own.
func (w *tokens) grant(t testing.TB, others ...string) {
	t.Helper()
	var files []string
	for _, name := range append([]string{"plugin"}, others...) {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "rbac", name+".yaml"))
		require.NoError(t, err)
		files = append(files, string(text))
	}
	renamed := strings.NewReplacer("namespace: "+agentNamespace, "namespace: "+w.ns, `"meshcni-agent-evictions"`, `"meshcni-agent-evictions-`+w.ns+`"`)
	for _, doc := range strings.Split(renamed.Replace(strings.Join(files, "\n---\n")), "\n---\n") {
		object := map[string]any{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &object))
		var meta metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal([]byte(doc), &meta))
		path := "/api/v1/namespaces/" + w.ns + "/"
		if meta.APIVersion != "v1" {
			path = w.rbac(meta.Namespace)
		}
		if strings.HasPrefix(meta.Kind, "Cluster") {
			object["metadata"].(map[string]any)["name"] = meta.Name + "-" + w.ns
			if ref, ok := object["roleRef"].(map[string]any); ok {
				ref["name"] = meta.Name + "-" + w.ns
			}
		}
		w.Do(t, http.MethodPost, path+strings.ToLower(meta.Kind)+"s?fieldValidation=Strict", object, nil)
	}
}

func (w *tokens) rbac(namespace string) string {
	if namespace == "" {
		return "/apis/rbac.authorization.k8s.io/v1/"
	}
	return "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/"
}

// run runs the agent until it has installed the plugin.
func (w *tokens) run(t testing.TB, args ...string) {
	t.Helper()
	c := agentContainer(t, w.s, w.dirs, buildProgram(t, "meshcni-node"), args...)
	c.env = append(c.env, "POD_NAMESPACE="+w.ns, "NODE_NAME="+w.node, "MESHCNI_DAEMONSET_NAME=meshcni-node-"+w.ns)
	w.agent = c.start(t)
	eventually(t, "ready", func() bool { return w.agent.get(t, "/readyz") == "ok\n" })
}

var tokenInKubeconfig = regexp.MustCompile(`token: "(.*)"`)

// token is the one that the plugin has.
func (w *tokens) token(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dirs.run, "kubeconfig"))
	require.NoError(t, err)
	found := tokenInKubeconfig.FindSubmatch(text)
	require.NotNil(t, found, "%s", text)
	return string(found[1])
}

// claims are what a token says of itself.
type claims struct {
	Sub      string
	Iat, Exp int64
	Objects  struct {
		Node, Pod *struct{ Name, UID string }
	} `json:"kubernetes.io"`
}

func claimsOf(t testing.TB, token string) (c claims) {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(payload, &c))
	return c
}

// try sends a request with a token, and returns the answer's status.
func (w *tokens) try(t testing.TB, token, method, path string, in any) int {
	t.Helper()
	config, err := w.s.Config(token)
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	var body bytes.Buffer
	if in != nil {
		require.NoError(t, json.NewEncoder(&body).Encode(in))
	}
	req, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, &body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[method == http.MethodPatch])
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

// worthless waits until the API server does not know a token any more, and says how long that took: it remembers a good one for 10
// seconds, and forgives a deletion for as long as its clocks may differ.
func (w *tokens) worthless(t testing.TB, token, why string) {
	t.Helper()
	began := time.Now()
	eventually(t, why, func() bool {
		return w.try(t, token, http.MethodGet, kubetest.PodPath(w.ns, "cart"), nil) == http.StatusUnauthorized
	})
	t.Logf("%s: unauthorized after %s", why, time.Since(began).Round(time.Second))
}

// TestPluginsToken: what the plugin's token is bound to, what it is good for and for how long, on a real API server.
func TestPluginsToken(t *testing.T) {
	t.Parallel()
	w := newTokens(t)
	w.grant(t)
	w.run(t, "--token-lifetime=2h")
	token := w.token(t)

	var node corev1.Node
	w.Do(t, http.MethodGet, "/api/v1/nodes/"+w.node, nil, &node)
	c := claimsOf(t, token)
	assert.Equal(t, w.plugin, c.Sub)
	assert.Equal(t, 2*time.Hour, time.Duration(c.Exp-c.Iat)*time.Second, "not extended to a year")
	require.NotNil(t, c.Objects.Node)
	assert.Equal(t, w.node, c.Objects.Node.Name)
	assert.Equal(t, string(node.UID), c.Objects.Node.UID)
	assert.Nil(t, c.Objects.Pod)
	assert.Contains(t, w.agent.get(t, "/metrics"), `meshcni_token_bound{object="node"} 1`)
	assert.NotContains(t, w.agent.log.String(), "the agent's own token")
	assert.Equal(t, 1, w.s.Calls(t, w.agentUser)["create serviceaccounts/token"], "one request")

	pod := kubetest.PodPath(w.ns, "cart")
	request := &authenticationv1.TokenRequest{}
	label := map[string]any{"metadata": map[string]any{"labels": map[string]string{"a": "b"}}}
	own, err := os.ReadFile(filepath.Join(w.dirs.sa, "token"))
	require.NoError(t, err)
	for _, c := range []struct {
		who, token, method, path string
		in                       any
		want                     int
	}{
		{"plugin", token, http.MethodGet, pod, nil, 200},
		{"plugin", token, http.MethodGet, kubetest.PodPath("kube-system", "none"), nil, 404},
		{"plugin", token, http.MethodGet, "/api/v1/namespaces/" + w.ns + "/pods", nil, 403},
		{"plugin", token, http.MethodGet, "/api/v1/pods?watch=true", nil, 403},
		{"plugin", token, http.MethodPatch, pod, label, 403},
		{"plugin", token, http.MethodPatch, pod + "/status", label, 403},
		{"plugin", token, http.MethodDelete, pod, nil, 403},
		{"plugin", token, http.MethodGet, "/api/v1/namespaces/" + w.ns + "/secrets/x", nil, 403},
		{"plugin", token, http.MethodGet, "/api/v1/secrets", nil, 403},
		{"plugin", token, http.MethodGet, "/api/v1/namespaces/" + w.ns + "/configmaps/x", nil, 403},
		{"plugin", token, http.MethodGet, "/api/v1/nodes/" + w.node, nil, 403},
		{"plugin", token, http.MethodGet, "/api/v1/namespaces/" + w.ns, nil, 403},
		{"plugin", token, http.MethodPost, w.accounts() + "/meshcni-plugin/token", request, 403},
		{"plugin", token, http.MethodPost, w.accounts() + "/meshcni-node/token", request, 403},
		{"agent", string(own), http.MethodPost, w.accounts() + "/meshcni-plugin/token", request, 201},
		{"agent", string(own), http.MethodPost, w.accounts() + "/meshcni-node/token", request, 403},
		{"agent", string(own), http.MethodPost, w.accounts() + "/default/token", request, 403},
		{"agent", string(own), http.MethodPost, "/api/v1/namespaces/kube-system/serviceaccounts/meshcni-plugin/token", request, 403},
		{"agent", string(own), http.MethodGet, w.accounts() + "/meshcni-plugin", nil, 403},
		{"agent", string(own), http.MethodGet, pod, nil, 403},
	} {
		assert.Equal(t, c.want, w.try(t, c.token, c.method, c.path, c.in), "%s: %s %s", c.who, c.method, c.path)
	}

	// The agent's pod goes, and its own token with it; the plugin's stays.
	require.NoError(t, w.agent.cmd.Process.Signal(unix.SIGTERM))
	require.NoError(t, w.agent.wait())
	w.Remove(t, w.ns, "meshcni-node-x")
	eventually(t, "the agent's own token is worthless", func() bool {
		return w.try(t, string(own), http.MethodPost, w.accounts()+"/meshcni-plugin/token", request) == http.StatusUnauthorized
	})
	assert.Equal(t, token, w.token(t), "the agent leaves it")
	assert.Equal(t, http.StatusOK, w.try(t, token, http.MethodGet, pod, nil))

	// The node goes; another of its name is another.
	w.Do(t, http.MethodDelete, "/api/v1/nodes/"+w.node, nil, nil)
	w.worthless(t, token, "the node is deleted")
	w.makeNode(t)
	assert.Equal(t, http.StatusUnauthorized, w.try(t, token, http.MethodGet, pod, nil), "a new node of the same name")
}

// TestPluginsTokenAfterUninstall: the release's service account goes, and every node's token with it; the agent removes the file.
func TestPluginsTokenAfterUninstall(t *testing.T) {
	t.Parallel()
	w := newTokens(t)
	w.grant(t)
	w.run(t, "--uninstall-on-exit=true")
	token := w.token(t)
	assert.Equal(t, w.plugin, claimsOf(t, token).Sub)
	assert.Equal(t, http.StatusOK, w.try(t, token, http.MethodGet, kubetest.PodPath(w.ns, "cart"), nil))
	w.Do(t, http.MethodDelete, w.accounts()+"/meshcni-plugin", nil, nil)
	require.NoError(t, w.agent.cmd.Process.Signal(unix.SIGTERM))
	require.NoError(t, w.agent.wait())
	assert.NoFileExists(t, filepath.Join(w.dirs.run, "kubeconfig"))
	w.worthless(t, token, "the service account is deleted")
}

// TestPluginsTokenWithoutTheRight: the plugin has the agent's own token, the agent says so once, and has the plugin's as soon as it
// may. The agent tries again with growing pauses, and nothing is written meanwhile.
func TestPluginsTokenWithoutTheRight(t *testing.T) {
	t.Parallel()
	w := newTokens(t)
	w.run(t)
	own, err := os.ReadFile(filepath.Join(w.dirs.sa, "token"))
	require.NoError(t, err)
	assert.Equal(t, string(own), w.token(t))
	written, err := os.Stat(filepath.Join(w.dirs.run, "kubeconfig"))
	require.NoError(t, err)
	eventually(t, "it is tried again", func() bool {
		return w.s.Calls(t, w.agentUser)["create serviceaccounts/token FORBIDDEN"] >= 3
	})
	again, err := os.Stat(filepath.Join(w.dirs.run, "kubeconfig"))
	require.NoError(t, err)
	assert.True(t, os.SameFile(written, again), "it was written again")
	metrics := w.agent.get(t, "/metrics")
	assert.Contains(t, metrics, `meshcni_token_bound{object="pod"} 1`)
	assert.NotContains(t, metrics, `meshcni_failures_total{step="token"} 0`)
	assert.Equal(t, 1, strings.Count(w.agent.log.String(), "the agent's own token"), "%s", w.agent.log)
	assert.Contains(t, w.agent.log.String(), "serviceaccounts")

	w.grant(t)
	eventually(t, "the plugin's own", func() bool { return claimsOf(t, w.token(t)).Sub == w.plugin })
	eventually(t, "and said so", func() bool {
		return strings.Contains(w.agent.get(t, "/metrics"), `meshcni_token_bound{object="node"} 1`)
	})
}

// TestPluginsTokenWithoutTheServer: an agent that starts while the API server is away keeps the token that an earlier agent left.
func TestPluginsTokenWithoutTheServer(t *testing.T) {
	t.Parallel()
	w := newTokens(t)
	w.grant(t)
	w.run(t)
	token := w.token(t)
	require.Equal(t, w.plugin, claimsOf(t, token).Sub)
	require.NoError(t, w.agent.cmd.Process.Signal(unix.SIGTERM))
	require.NoError(t, w.agent.wait())

	c := agentContainer(t, w.s, w.dirs, buildProgram(t, "meshcni-node"), "--kubernetes-service-port=1")
	c.env = append(c.env, "POD_NAMESPACE="+w.ns, "NODE_NAME="+w.node)
	agent := c.start(t)
	eventually(t, "ready", func() bool { return agent.get(t, "/readyz") == "ok\n" })
	assert.Equal(t, token, w.token(t))
	assert.Contains(t, agent.get(t, "/metrics"), `meshcni_token_bound{object="node"} 1`)
}

// TestPluginsTokenMadeAnew: the service account was deleted and made anew, so that the token is worthless long before it expires. The
// agent has another soon after a plugin has failed with it.
func TestPluginsTokenMadeAnew(t *testing.T) {
	t.Parallel()
	w := newTokens(t)
	w.grant(t)
	w.run(t)
	token := w.token(t)
	w.Do(t, http.MethodDelete, w.accounts()+"/meshcni-plugin", nil, nil)
	w.ServiceAccount(t, w.ns, "meshcni-plugin")
	w.worthless(t, token, "the service account is another")
	eventually(t, "another token", func() bool {
		sendRecord(t, filepath.Join(w.dirs.run, "log.sock"), `{"level":"ERROR","msg":"failed","verb":"ADD","code":11}`)
		return w.token(t) != token
	})
	assert.Equal(t, http.StatusOK, w.try(t, w.token(t), http.MethodGet, kubetest.PodPath(w.ns, "cart"), nil))
}

// sendRecord sends a record as a plugin does.
func sendRecord(t testing.TB, socket, record string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	require.NoError(t, unix.Sendto(fd, []byte(record), 0, &unix.SockaddrUnix{Name: socket}))
}
