package kubectlcmd

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/api/rights"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// TestCheckRights: each right that an agent says it needs is asked about, once for all nodes, and those of the plugin and of the
// taint's controller by their own accounts.
func TestCheckRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, node := range []string{"a", "b"} {
		w.Node(t, node, kubectltest.Sound(node, func(n *agentapi.Node) {
			n.Rights = rights.Agent(rights.Needs{
				Namespace: "meshcni-system", Node: node, PluginAccount: "meshcni-plugin", Serves: true,
				Repair: []authorizationv1.ResourceAttributes{{Verb: "create", Resource: "pods", Subresource: "eviction"}},
			})
		}))
	}
	w.MeshPod(t, "shop", "cart", "a")
	w.Create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "meshcni-system", Name: "meshcni-node-taint-1", Labels: map[string]string{
			"app.kubernetes.io/name": "meshcni", "app.kubernetes.io/component": "taint",
		}},
		Spec: corev1.PodSpec{ServiceAccountName: "tainter", Containers: []corev1.Container{{Name: "taint", Image: "i", Args: []string{"run", "--lease-name=mine"}}}},
	})
	w.Grant(t, "agent", "system:serviceaccount:meshcni-system:default", map[string][]string{"pods": {"list", "watch"}, "events": {"create", "patch"}})
	w.Grant(t, "taint", "system:serviceaccount:meshcni-system:tainter", map[string][]string{"nodes": {"get", "list", "watch", "patch"}, "pods": {"list", "watch"}, "events": {"create", "patch"}})
	code, out, _ := w.run(t, "check", "-o", "json")
	assert.Equal(t, exitWrong, code)
	missing := map[string]string{}
	for _, f := range kubectltest.Decode[report](t, out).Findings {
		assert.Equal(t, codeAgentRights, f.Code, f.Text)
		assert.Equal(t, 1, f.Count, "asked once for both nodes: %s", f.Text)
		missing[f.Text] = f.Where[0]
	}
	const ns = " in namespace meshcni-system"
	assert.Equal(t, map[string]string{
		"may not get pods: without it no pod of the mesh starts":                                                         "system:serviceaccount:meshcni-system:meshcni-plugin",
		"may not create serviceaccounts/token meshcni-plugin" + ns + ": without it the plugin has the agent's own token": "system:serviceaccount:meshcni-system:default",
		"may not create pods/eviction: without it pods that started without the plugin are not found, or not repaired":   "system:serviceaccount:meshcni-system:default",
		"may not list daemonsets.apps meshcni-node" + ns + ": without it the taint's controller does not work":           "system:serviceaccount:meshcni-system:tainter",
		"may not watch daemonsets.apps meshcni-node" + ns + ": without it the taint's controller does not work":          "system:serviceaccount:meshcni-system:tainter",
		"may not create leases.coordination.k8s.io" + ns + ": without it the taint's controller does not work":           "system:serviceaccount:meshcni-system:tainter",
		"may not get leases.coordination.k8s.io mine" + ns + ": without it the taint's controller does not work":         "system:serviceaccount:meshcni-system:tainter",
		"may not update leases.coordination.k8s.io mine" + ns + ": without it the taint's controller does not work":      "system:serviceaccount:meshcni-system:tainter",
	}, missing)

	w.Grant(t, "plugin", "system:serviceaccount:meshcni-system:meshcni-plugin", map[string][]string{"pods": {"get"}})
	_, out, _ = w.run(t, "check")
	assert.NotContains(t, out, "may not get pods:", "it has been granted")
}

// TestRightsUnknown: that one right cannot be asked about hides no other that is known to be missing.
func TestRightsUnknown(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&review))
		if review.Spec.ResourceAttributes.Verb == "watch" {
			review.Status.EvaluationError = "the webhook does not answer"
		}
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(review))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	var r rightsWanted
	for _, verb := range []string{"watch", "list", "get"} {
		r.add("ns", "agent", "n", []agentapi.Right{{Attributes: authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods"}, For: "why"}})
	}
	r.add("ns", "other", "n", []agentapi.Right{{Attributes: authorizationv1.ResourceAttributes{Verb: "watch", Resource: "pods"}, For: "why"}})
	assert.Equal(t, map[status.Code][]string{codeAgentRights: {
		"unknown: whether the agents' account has its rights cannot be asked: whether system:serviceaccount:ns:agent may watch pods is not known: the webhook does not answer", "error: may not list pods: why", "error: may not get pods: why",
	}}, added(func(f *findings) {
		(&cluster{Program: Program{Identity: own}, client: client}).rights(t.Context(), f, r)
	}))
}

// TestRightsAreBounded: agents whose settings all differ make no end of questions.
func TestRightsAreBounded(t *testing.T) {
	var r rightsWanted
	for i := range maxRights + 1 {
		r.add("ns", "agent", "n", []agentapi.Right{{Attributes: authorizationv1.ResourceAttributes{Verb: "get", Name: string(rune('0' + i))}}})
	}
	assert.Len(t, r.all, maxRights)
	assert.True(t, r.more)
}
