package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// bound is a server whose authorizers are those of deploy/authorizer, with two nodes, an agent's pod and another on each.
type bound struct {
	*admin

	s  *kubetest.Server
	ns string
}

// newBound starts it. Without a url of the authorizer that is asked about what must be refused there is nobody there, as in
// deploy/authorizer.
func newBound(t *testing.T, url string) *bound {
	t.Helper()
	netnstest.Require(t, kubetest.Servers)
	dir := t.TempDir()
	for _, name := range []string{"authorization.yaml", "meshcni-nobody.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "authorizer", name))
		require.NoError(t, err)
		here := strings.ReplaceAll(string(text), "/etc/kubernetes/", dir+"/")
		if url != "" {
			here = strings.ReplaceAll(here, "server: https://127.0.0.1:1\n", "server: "+url+"\n      insecure-skip-tls-verify: true\n")
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(here), 0o600))
	}
	s := kubetest.Own(t, kubetest.Options{DisableAdmission: servers.DisableAdmission, AuthorizationConfig: filepath.Join(dir, "authorization.yaml")})
	b := &bound{admin: newAdmin(t, s), s: s}
	b.Do(t, http.MethodPost, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentNamespace}}, nil)
	b.ns = b.Namespace(t)
	for _, name := range []string{"meshcni-node", "meshcni-plugin", "somebody"} {
		b.ServiceAccount(t, agentNamespace, name)
	}
	for _, node := range []string{"node-1", "node-2"} {
		b.Do(t, http.MethodPost, "/api/v1/nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, nil)
		b.Create(t, podFrom(t, "passed", b.ns, "web-"+node, node))
		agent := podFrom(t, "passed", agentNamespace, "agent-"+node, node)
		agent.Spec.ServiceAccountName, agent.Spec.DeprecatedServiceAccount = "meshcni-node", ""
		b.Create(t, agent)
	}
	return b
}

// token is one of an account, bound to an object unless its kind is empty.
func (b *bound) token(t *testing.T, account, kind, name string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if kind != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: kind, APIVersion: "v1", Name: name}
	}
	b.Do(t, http.MethodPost, "/api/v1/namespaces/"+agentNamespace+"/serviceaccounts/"+account+"/token", request, request)
	return request.Status.Token
}

// TestReadsEndAtTheirNode: with the authorizers of deploy/authorizer, tokens that may read everything by their roles read the pods of
// their node only.
func TestReadsEndAtTheirNode(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	authorizer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		review := authorizationv1.SubjectAccessReview{}
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "not of the token's node"}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(authorizer.Close)
	b := newBound(t, authorizer.URL)
	for _, name := range []string{"meshcni-node", "meshcni-plugin", "somebody"} {
		b.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "all-" + name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: agentNamespace, Name: name}},
		}, nil)
	}
	agent, plugin := b.token(t, "meshcni-node", "Pod", "agent-node-1"), b.token(t, "meshcni-plugin", "Node", "node-1")
	nodeless, other := b.token(t, "meshcni-node", "", ""), b.token(t, "somebody", "", "")
	pods, here := "/api/v1/pods", "/api/v1/namespaces/"+b.ns+"/pods"
	list := func(path, selector string) string { return path + "?fieldSelector=" + url.QueryEscape(selector) }
	watch := func(path string) string { return path + "&watch=true&timeoutSeconds=1" }
	for what, test := range map[string]struct {
		token, path string
		want        int
	}{
		"the node's":                 {agent, list(pods, "spec.nodeName=node-1"), http.StatusOK},
		"a watch of the node's":      {agent, watch(list(pods, "spec.nodeName=node-1")), http.StatusOK},
		"of one namespace":           {agent, list(here, "spec.nodeName=node-1"), http.StatusOK},
		"one of the node's":          {agent, list(here, "metadata.name=web-node-1,spec.nodeName=node-1"), http.StatusOK},
		"another's":                  {agent, list(pods, "spec.nodeName=node-2"), http.StatusForbidden},
		"a watch of another's":       {agent, watch(list(pods, "spec.nodeName=node-2")), http.StatusForbidden},
		"all":                        {agent, pods, http.StatusForbidden},
		"all of a namespace":         {agent, here, http.StatusForbidden},
		"all but some":               {agent, list(pods, "spec.nodeName!=node-2"), http.StatusForbidden},
		"by name alone":              {agent, list(here, "metadata.name=web-node-2"), http.StatusForbidden},
		"a get":                      {agent, here + "/web-node-1", http.StatusForbidden},
		"a log":                      {agent, here + "/web-node-1/log", http.StatusForbidden},
		"without a node":             {nodeless, list(pods, "spec.nodeName=node-1"), http.StatusForbidden},
		"the plugin gets":            {plugin, here + "/web-node-1", http.StatusForbidden},
		"the plugin lists":           {plugin, list(pods, "spec.nodeName=node-1"), http.StatusForbidden},
		"the node":                   {agent, "/api/v1/nodes/node-1", http.StatusOK},
		"another node":               {agent, "/api/v1/nodes/node-2", http.StatusForbidden},
		"all nodes":                  {agent, "/api/v1/nodes", http.StatusForbidden},
		"nodes, by its pods":         {agent, list("/api/v1/nodes", "spec.nodeName=node-1"), http.StatusForbidden},
		"a node, without one":        {nodeless, "/api/v1/nodes/node-1", http.StatusForbidden},
		"the plugin gets a node":     {plugin, "/api/v1/nodes/node-1", http.StatusForbidden},
		"something else":             {agent, "/api/v1/namespaces", http.StatusOK},
		"no resource":                {agent, "/version", http.StatusOK},
		"somebody else's":            {other, pods, http.StatusOK},
		"another account's get, too": {other, here + "/web-node-2", http.StatusOK},
	} {
		config, err := b.s.Config(test.token)
		require.NoError(t, err)
		before := asked.Load()
		assert.Equal(t, test.want, statusCode(t, config, test.path), what)
		if test.want == http.StatusOK {
			assert.Equal(t, before, asked.Load(), "%s: it costs no request", what)
		}
	}
	assert.Positive(t, asked.Load())
}

// TestAgentReadsItsNode: the built agent does its work with the rights of deploy/rbac behind these authorizers, and is refused nothing.
func TestAgentReadsItsNode(t *testing.T) {
	t.Parallel()
	b := newBound(t, "")
	applyRBAC(t, b.admin, "repair-delete", "meshcni-node")
	dir := t.TempDir()
	ca, err := os.ReadFile(b.s.CAFile())
	require.NoError(t, err)
	for path, text := range map[string]string{
		"sa/ca.crt": string(ca), "sa/token": b.token(t, "meshcni-node", "Pod", "agent-node-1"), "src/meshcni": "#!/bin/sh\nexit 0\n", "bin/ptp": "", "cache/.keep": "",
		"net.d/10-net.conflist": `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o755)) //nolint:gosec // one is a program
	}
	port, err := proctest.FreePort()
	require.NoError(t, err)
	address := "127.0.0.1:" + strconv.Itoa(port)
	in := func(flag, d string) string { return "--" + flag + "=" + filepath.Join(dir, d) }
	p := startProcess(t, address, buildProgram(t, "meshcni-node"), "run",
		in("bin-source-dir", "src"), in("cni-bin-dir", "bin"), in("cni-conf-dir", "net.d"), in("run-dir", "run"),
		in("service-account-dir", "sa"), in("cni-cache-dir", "cache"), "--agent=require",
		"--kubernetes-service-host=127.0.0.1", fmt.Sprintf("--kubernetes-service-port=%d", b.s.Address().Port()),
		"--repair=delete", "--node-name=node-1", "--metrics-address="+address, "--health-address="+address)
	eventually(t, "ready", func() bool { return p.get(t, "/readyz") == "ok\n" })
	broken := b.Create(t, podFrom(t, "crash-loop", b.ns, "broken", "node-1"))
	eventually(t, "evicted", func() bool { return b.away(b.ns, "broken", string(broken.UID)) })
	const user = "system:serviceaccount:" + agentNamespace + ":meshcni-node"
	assert.Positive(t, reads(t, b.s, user), "read before it is evicted")
	for what := range b.s.Calls(t, user) {
		if strings.Contains(what, "pods") {
			assert.NotContains(t, what, "FORBIDDEN")
		}
	}
	config, err := b.s.Config(b.token(t, "meshcni-node", "Pod", "agent-node-1"))
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, statusCode(t, config, "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1"))
	assert.GreaterOrEqual(t, statusCode(t, config, "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-2"), http.StatusBadRequest, "without an answer")
}
