package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// soon bounds how long something may take that an API server does by itself.
const soon = netnstest.Patience

// guarded is a release of the chart in a namespace of its own, of a server that has its policies, and whose roles grant everything: what is
// refused, admission refuses.
type guarded struct {
	*kubetest.Admin

	server    *kubetest.Server
	namespace string // of the release
	pods      string // of the pods web-1 and web-2, on the nodes node-1 and node-2, and of unbound
	// The tokens of the agent and of the plugin on each node, and one of the agent's account that names none.
	agent, plugin map[string]string
	unbound       string
}

// nodes have an agent, a plugin and a pod each.
var nodes = []string{"node-1", "node-2"}

// guard installs the policies of some values, under names of their own.
func guard(t *testing.T, s *kubetest.Server, v values) *guarded {
	t.Helper()
	g := &guarded{Admin: s.Admin(t), server: s, agent: map[string]string{}, plugin: map[string]string{}}
	g.namespace, g.pods = g.Namespace(t), g.Namespace(t)
	for _, account := range []string{"meshcni-node", "meshcni-plugin", "somebody"} {
		g.ServiceAccount(t, g.namespace, account)
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: g.namespace + "-" + account},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: g.namespace, Name: account}},
		}
		g.Do(t, http.MethodPost, collection("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", ""), binding, nil)
	}
	g.ServiceAccount(t, g.pods, "default")
	for _, node := range nodes {
		err := g.Try(http.MethodPost, "/api/v1/nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, nil)
		if err != nil {
			require.ErrorContains(t, err, "409")
		}
		agent := g.pod(t, g.namespace, "agent-"+node, "meshcni-node", node)
		g.agent[node] = g.token(t, "meshcni-node", &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: agent.Name, UID: agent.UID})
		g.plugin[node] = g.token(t, "meshcni-plugin", &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node})
		g.pod(t, g.pods, "web-"+strings.TrimPrefix(node, "node-"), "default", node)
	}
	g.pod(t, g.pods, "unbound", "default", "")
	g.unbound = g.token(t, "meshcni-node", nil)
	g.install(t, policies(t, g.namespace, v))
	return g
}

// policies are what the chart renders of them for a release in some namespace.
func policies(t *testing.T, namespace string, v values) (all objects) {
	t.Helper()
	out, err := helm(t, "template", "meshcni", chart, "--namespace", namespace, "--kube-version", kubeVersion, "--values", v.write(t))
	require.NoError(t, err)
	for _, o := range parse(t, out)[""] {
		if strings.HasPrefix(o.GetAPIVersion(), "admissionregistration.k8s.io/") {
			all = append(all, o)
		}
	}
	return all
}

// install makes them, with names that no other release has.
func (g *guarded) install(t *testing.T, all objects) {
	t.Helper()
	require.NotEmpty(t, all)
	for _, o := range all {
		o.SetName(o.GetName() + "-" + g.namespace)
		if name, ok, _ := unstructured.NestedString(o.Object, "spec", "policyName"); ok {
			require.NoError(t, unstructured.SetNestedField(o.Object, name+"-"+g.namespace, "spec", "policyName"))
		}
		g.Do(t, http.MethodPost, collection(o.GetAPIVersion(), o.GetKind(), "")+"?fieldValidation=Strict", o.Object, nil)
	}
}

// pod makes one with all that a policy may have to leave alone.
func (g *guarded) pod(t testing.TB, namespace, name, account, node string) *corev1.Pod {
	t.Helper()
	now := metav1.NewTime(time.Unix(1700000000, 0))
	return g.Create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "mine"},
			Finalizers: []string{"mesh.example/wait"},
		},
		Spec: corev1.PodSpec{ServiceAccountName: account, NodeName: node, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.1.2.3", PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}}, StartTime: &now,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true, RestartCount: 3, Image: "web"}},
		},
	})
}

// token asks for one as a kubelet or an agent does.
func (g *guarded) token(t testing.TB, account string, bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	g.Do(t, http.MethodPost, collection("v1", "ServiceAccount", g.namespace)+"/"+account+"/token", request, request)
	return request.Status.Token
}

// request is one that a token's owner sends.
type request struct {
	what         string
	token        string
	method, path string
	body         any
	// says is part of why admission refuses it; empty if it must be allowed.
	says string
}

// send sends it and returns the answer's code and text.
func (g *guarded) send(t testing.TB, r request, query string) (code int, answer string) {
	t.Helper()
	config, err := g.server.Config(r.token)
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	text, err := json.Marshal(r.body)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), r.method, config.Host+r.path+query, bytes.NewReader(text))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if r.method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(all)
}

// judge sends all requests: first those that are refused, dry until the policies hold, and then those that are allowed.
func (g *guarded) judge(t *testing.T, all []request) {
	t.Helper()
	assert.NoError(t, proctest.Poll(soon, func() error {
		var errs []error
		for _, r := range all {
			if r.says == "" {
				continue
			}
			query := "?dryRun=All"
			if strings.HasSuffix(r.path, "/exec") { // which knows no such thing, and reaches nobody here
				query = ""
			}
			code, answer := g.send(t, r, query)
			if code != http.StatusForbidden || !strings.Contains(answer, "ValidatingAdmissionPolicy") || !strings.Contains(answer, r.says) {
				errs = append(errs, fmt.Errorf("%s: %d instead of %q: %s", r.what, code, r.says, answer))
			}
		}
		return errors.Join(errs...)
	}))
	for _, r := range all {
		if r.says == "" {
			code, answer := g.send(t, r, "")
			assert.Equal(t, 2, code/100, "allowed: %s: %s", r.what, answer)
		}
	}
}

// status patches a pod's status.
func (g *guarded) status(what, token, pod string, body values, says string) request {
	return request{what, token, http.MethodPatch, kubetest.PodPath(g.pods, pod) + "/status", body, says}
}

// event is one of the agent's about an object, from a node.
func (g *guarded) event(what, token, name, kind, about, from, says string) request {
	namespace, client := g.pods, g.pods
	if kind == "Node" {
		namespace, client = "default", ""
	}
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about, Namespace: client},
		Source: corev1.EventSource{Component: "meshcni-repair", Host: from}, Reason: "Found", Message: "m", Type: corev1.EventTypeNormal,
		ReportingController: "meshcni-repair", ReportingInstance: from,
	}
	return request{what, token, http.MethodPost, collection("v1", "Event", namespace), e, says}
}

// tokenFor asks for a token of an account that is bound to an object.
func (g *guarded) tokenFor(what, token, account string, bound *authenticationv1.BoundObjectReference, seconds int64, says string) request {
	body := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound, ExpirationSeconds: &seconds}}
	return request{what, token, http.MethodPost, collection("v1", "ServiceAccount", g.namespace) + "/" + account + "/token", body, says}
}

func toNode(name string) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: name}
}

// evict evicts a pod, if need be with an object that names it.
func (g *guarded) evict(what, token, pod, says string) request {
	body := values{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": values{"name": pod, "namespace": g.pods}}
	return request{what, token, http.MethodPost, kubetest.PodPath(g.pods, pod) + "/eviction", body, says}
}

// lease writes the budget's Lease.
func (g *guarded) lease(what, token, method, name, holder, says string) request {
	path := fmt.Sprintf("/apis/coordination.k8s.io/v1/namespaces/%s/leases", g.namespace)
	body := values{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": values{"name": name}, "spec": values{"holderIdentity": holder}}
	if method != http.MethodPost {
		path += "/" + name
	}
	return request{what, token, method, path, body, says}
}
