package deploy_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// What policies say of what they refuse.
const (
	mayNot     = "may not: "
	noNode     = "has a token that names no node"
	otherNode  = "may change pods of its own node only"
	noLabel    = "may change no labels of a pod"
	noNote     = "may change no annotations of a pod"
	noElse     = "may change nothing else of a pod"
	elsewhere  = "may write no events from elsewhere"
	otherAbout = "may write events about its own node and about pods only"
	otherPods  = "may write events about pods of its own node only"
	// eitherWay is what both policies for events say that refuse such a one.
	eitherWay  = "may write "
	otherToken = "may make tokens of service account"
	otherBound = "may make tokens that are bound to its own node only"
	tooLong    = "may make tokens of at most 14400 seconds"
	notEvicted = "may evict pods of its own node only"
)

// never is a release that does nothing to pods.
var never = values{"repair": values{"mode": "none"}}

// mark is a patch of one label or annotation.
func mark(in, key string, value any) values {
	return values{"metadata": values{in: values{key: value}}}
}

// TestTokensEndAtTheirNode: with the policies of the chart, a real API server lets a token of the agent or the plugin write only what is of
// the token's node and what the mode needs, whatever its roles grant.
func TestTokensEndAtTheirNode(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, kubetest.Components("kube-controller-manager"))
	s := kubetest.Own(t, kubetest.Options{})
	label := values{"repair": values{"mode": "label", "label": "mesh.example/state=broken"}}
	for name, test := range map[string]struct {
		values values
		more   func(g *guarded, n1, n2 string) []request
	}{
		"none":  {never, nothingOfPods},
		"taint": {taintOn.with(never), nothingOfPods},
		"auto": {values{}, func(g *guarded, n1, n2 string) []request {
			said := func(r request, node string) request {
				r.body.(values)["metadata"].(values)["annotations"] = values{"meshcni.io/of-node": node}
				return r
			}
			return append(nothingOfPods(g, n1, n2)[2:],
				g.evict("evict another's", n1, "web-2", notEvicted), g.evict("evict without a node", g.unbound, "web-1", noNode),
				said(g.evict("evict its own as another's", n1, "web-1", notEvicted), "node-2"), said(g.evict("evict another's as its own", n1, "web-2", notEvicted), "node-1"),
				said(g.evict("evict a pod of the node that says so", n2, "web-2", ""), "node-2"), g.evict("evict a pod of the node", n1, "web-1", ""),
				request{"delete past the budget", n1, http.MethodDelete, kubetest.PodPath(g.pods, "web-1"), nil, mayNot + "DELETE pods"},
			)
		}},
		"label": {label, labels},
		"delete": {values{"repair": values{"mode": "delete"}}, func(g *guarded, n1, n2 string) []request {
			return []request{
				g.evict("evict a pod of the node", n1, "web-1", ""), g.evict("evict another's", n1, "web-2", notEvicted),
				g.evict("evict without a node", g.unbound, "web-1", noNode),
				{"delete past the budget", n1, http.MethodDelete, kubetest.PodPath(g.pods, "web-1"), nil, mayNot + "DELETE pods"},
				g.status("label", n1, "web-1", mark("labels", "meshcni.io/not-redirected", "true"), mayNot+"UPDATE pods/status"),
			}
		}},
		"force-delete": {values{"repair": values{"mode": "delete", "forceDelete": true}}, deletes},
		"ambient":      {ambientOn.with(never), ambientMarks},
		"status":       {values{"dialect": "consul", "writeStatus": true, "repair": values{"initContainer": "check", "exitCodes": []int{3}}}, pluginMarks},
	} {
		g := guard(t, s, test.values)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := g.agent["node-1"], g.agent["node-2"]
			g.judge(t, append(always(t, g, n1, n2), test.more(g, n1, n2)...))
		})
	}
	t.Run("types", func(t *testing.T) {
		t.Parallel()
		typesCheck(t, s)
	})
}

// always are requests whose answer is the same in every mode.
func always(t *testing.T, g *guarded, n1, n2 string) []request {
	config := values{"apiVersion": "v1", "kind": "ConfigMap", "metadata": values{"name": "new"}}
	configs := collection("v1", "ConfigMap", g.pods)
	review := values{"spec": values{"resourceAttributes": values{"verb": "list", "resource": "pods"}}}
	again := func(what, name string, body values, says string) request {
		return request{what, n1, http.MethodPatch, collection("v1", "Event", g.pods) + "/" + name, body, says}
	}
	for _, node := range nodes { // as written before
		e := g.event("", "", "of-"+node, "Pod", "web-"+node[len(node)-1:], node, "")
		g.Do(t, e.method, e.path, e.body, nil)
	}
	pod := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "agent-node-1"}
	return []request{
		{"write anything else", n1, http.MethodPost, configs, config, mayNot + "CREATE configmaps"},
		{"write anything else without a node", g.unbound, http.MethodPost, configs, config, noNode},
		{"the plugin writes", g.plugin["node-1"], http.MethodPost, configs, config, mayNot + "CREATE configmaps"},
		{"change a pod", n1, http.MethodPatch, kubetest.PodPath(g.pods, "web-1"), mark("labels", "a", "b"), mayNot + "UPDATE pods"},
		{"change its own Node", n1, http.MethodPatch, "/api/v1/nodes/node-1", mark("labels", "a", "b"), mayNot + "UPDATE nodes"},
		{"exec", n1, http.MethodPost, kubetest.PodPath(g.pods, "web-1") + "/exec", nil, mayNot + "CONNECT pods/exec"},
		{"bind", n1, http.MethodPost, kubetest.PodPath(g.pods, "web-1") + "/binding", values{"apiVersion": "v1", "kind": "Binding", "metadata": values{"name": "web-1"}, "target": values{"kind": "Node", "name": "node-2"}}, mayNot + "CREATE pods/binding"},
		{"take the policy away", n1, http.MethodDelete, collection("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "") + "/" + g.namespace + "-somebody", nil, mayNot + "DELETE clusterrolebindings"},
		{"ask what it may do", n1, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, ""},
		{"ask without a node", g.unbound, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, ""},
		{"read", g.unbound, http.MethodGet, kubetest.PodPath(g.pods, "web-2"), nil, ""},

		g.event("about its Node", n1, "node-event-"+g.pods, "Node", "node-1", "node-1", ""),
		g.event("about another Node", n1, "x", "Node", "node-2", "node-1", otherAbout),
		g.event("about its pod", n1, "e1", "Pod", "web-1", "node-1", ""),
		g.event("about another node's pod", n1, "x", "Pod", "web-2", "node-1", otherPods),
		g.event("about a pod that is not bound", n1, "e3", "Pod", "unbound", "node-1", ""),
		g.event("about a pod that is gone", n1, "e4", "Pod", "gone", "node-1", ""),
		g.event("in another node's name", n1, "x", "Pod", "web-1", "node-2", elsewhere),
		g.event("from nowhere", n1, "x", "Pod", "web-1", "", elsewhere),
		g.event("about a Service", n1, "x", "Service", "web", "node-1", otherAbout),
		g.event("without a node", g.unbound, "x", "Pod", "web-1", "node-1", noNode),
		g.event("by the plugin", g.plugin["node-1"], "x", "Pod", "web-1", "node-1", mayNot+"CREATE events"),
		g.event("of the other node", n2, "e2", "Pod", "web-2", "node-2", ""),
		again("again", "of-node-1", values{"count": 2}, ""),
		again("another's again", "of-node-2", values{"count": 2}, eitherWay),
		again("another's as its own", "of-node-2", values{"source": values{"host": "node-1"}, "reportingInstance": "node-1"}, eitherWay),
		again("its own as another's", "of-node-1", values{"source": values{"host": "node-2"}}, elsewhere),
		again("about something else", "of-node-1", values{"involvedObject": values{"name": "web-9"}}, "may not make an event one about something else"),

		g.tokenFor("a token for its node", n1, "meshcni-plugin", toNode("node-1"), 14400, ""),
		g.tokenFor("a short one", n1, "meshcni-plugin", toNode("node-1"), 600, ""),
		g.tokenFor("one for another node", n1, "meshcni-plugin", toNode("node-2"), 3600, otherBound),
		g.tokenFor("one for no node", n1, "meshcni-plugin", nil, 3600, otherBound),
		g.tokenFor("one for a pod", n1, "meshcni-plugin", pod, 3600, otherBound),
		g.tokenFor("a long one", n1, "meshcni-plugin", toNode("node-1"), 14401, tooLong),
		g.tokenFor("one that is extended to a year", n1, "meshcni-plugin", toNode("node-1"), 3607, tooLong),
		g.tokenFor("another account's", n1, "somebody", toNode("node-1"), 3600, otherToken),
		g.tokenFor("its own", n1, "meshcni-node", toNode("node-1"), 3600, otherToken),
		g.tokenFor("without a node", g.unbound, "meshcni-plugin", toNode("node-1"), 3600, noNode),
		g.tokenFor("by the plugin", g.plugin["node-1"], "meshcni-plugin", toNode("node-1"), 3600, mayNot+"CREATE serviceaccounts/token"),
	}
}

func nothingOfPods(g *guarded, n1, _ string) []request {
	return []request{
		g.status("label", n1, "web-1", mark("labels", "meshcni.io/not-redirected", "true"), mayNot+"UPDATE pods/status"),
		g.evict("evict", n1, "web-1", mayNot+"CREATE pods/eviction"),
		{"delete all pods", n1, http.MethodDelete, collection("v1", "Pod", g.pods), nil, mayNot + "DELETE pods"},
		g.status("the plugin", g.plugin["node-1"], "web-1", mark("annotations", "a", "b"), mayNot+"UPDATE pods/status"),
	}
}

// statuses are changes of a pod's status that nobody here needs.
func statuses(g *guarded, token string) []request {
	return []request{
		g.status("its phase", token, "web-1", values{"status": values{"phase": "Failed"}}, noElse),
		g.status("its addresses", token, "web-1", values{"status": values{"podIP": "10.9.9.9", "podIPs": []values{{"ip": "10.9.9.9"}}}}, noElse),
		g.status("its conditions", token, "web-1", values{"status": values{"conditions": []values{}}}, noElse),
		g.status("its finalizers", token, "web-1", values{"metadata": values{"finalizers": []string{"a.b/c"}}}, noElse),
		g.status("no finalizers", token, "web-1", values{"metadata": values{"finalizers": nil}}, noElse),
		g.status("another label", token, "web-1", mark("labels", "app", "db"), noLabel),
		g.status("a label less", token, "web-1", mark("labels", "app", nil), noLabel),
		g.status("another annotation", token, "web-1", mark("annotations", "note", "theirs"), noNote),
		g.status("an annotation less", token, "web-1", mark("annotations", "note", nil), noNote),
		g.status("all annotations less", token, "web-1", values{"metadata": values{"annotations": nil}}, noNote),
	}
}

func labels(g *guarded, n1, n2 string) []request {
	const key = "mesh.example/state"
	return append(statuses(g, n1),
		g.status("label", n1, "web-1", mark("labels", key, "broken"), ""),
		g.status("label again", n1, "web-1", mark("labels", key, "broken"), ""),
		g.status("take it away", n1, "web-1", mark("labels", key, nil), ""),
		g.status("of the other node", n2, "web-2", mark("labels", key, "broken"), ""),
		g.status("another's", n1, "web-2", mark("labels", key, "broken"), otherNode),
		g.status("another's, nothing", n1, "web-2", values{}, otherNode),
		g.status("another value", n1, "web-1", mark("labels", key, "fine"), noLabel),
		g.status("the default label", n1, "web-1", mark("labels", "meshcni.io/not-redirected", "true"), noLabel),
		g.status("as an annotation", n1, "web-1", mark("annotations", key, "broken"), noNote),
		g.status("without a node", g.unbound, "web-1", mark("labels", key, "broken"), noNode),
		g.status("the plugin", g.plugin["node-1"], "web-1", mark("labels", key, "broken"), mayNot+"UPDATE pods/status"),
	)
}

func ambientMarks(g *guarded, n1, n2 string) []request {
	const key = "ambient.istio.io/redirection"
	return append(statuses(g, n1),
		g.status("enrolled", n1, "web-1", mark("annotations", key, "enabled"), ""),
		g.status("pending", n1, "web-1", mark("annotations", key, "pending"), ""),
		g.status("take it away", n1, "web-1", mark("annotations", key, nil), ""),
		g.status("of the other node", n2, "web-2", mark("annotations", key, "enabled"), ""),
		g.status("another's", n1, "web-2", mark("annotations", key, "enabled"), otherNode),
		g.status("another value", n1, "web-1", mark("annotations", key, "x"), noNote),
		g.status("as a label", n1, "web-1", mark("labels", key, "enabled"), noLabel),
		g.status("the plugin", g.plugin["node-1"], "web-1", mark("annotations", key, "enabled"), mayNot+"UPDATE pods/status"),
		g.evict("evict", n1, "web-1", mayNot+"CREATE pods/eviction"),
	)
}

func pluginMarks(g *guarded, n1, _ string) []request {
	const key = "consul.hashicorp.com/transparent-proxy-status"
	p1, p2 := g.plugin["node-1"], g.plugin["node-2"]
	return append(statuses(g, p1),
		g.status("complete", p1, "web-1", mark("annotations", key, "complete"), ""),
		g.status("of the other node", p2, "web-2", mark("annotations", key, "complete"), ""),
		g.status("another's", p1, "web-2", mark("annotations", key, "complete"), otherNode),
		g.status("another value", p1, "web-1", mark("annotations", key, "enabled"), noNote),
		g.status("the agent", n1, "web-1", mark("annotations", key, "complete"), mayNot+"UPDATE pods/status"),
	)
}

func deletes(g *guarded, n1, n2 string) []request {
	remove := func(what, token, pod, says string) request {
		return request{what, token, http.MethodDelete, kubetest.PodPath(g.pods, pod), nil, says}
	}
	return []request{
		g.evict("evict another's", n1, "web-2", notEvicted), g.evict("evict", n1, "web-1", ""),
		remove("delete another's", n1, "web-2", otherNode), remove("delete", n2, "web-2", ""),
	}
}

// typesCheck: the API server's own check of the policies' expressions against the types of what they are about has nothing to say.
func typesCheck(t *testing.T, s *kubetest.Server) {
	t.Helper()
	a := s.Admin(t)
	wrong := policies(t, "wrong", values{})[1]
	validations := []any{map[string]any{"expression": "object.involvedObject.kin == ''"}}
	require.NoError(t, unstructured.SetNestedSlice(wrong.Object, validations, "spec", "validations"))
	wrong.SetName("wrong")
	path := collection(wrong.GetAPIVersion(), wrong.GetKind(), "")
	a.Do(t, http.MethodPost, path, wrong.Object, nil)
	manager, err := kubetest.Component("kube-controller-manager")
	require.NoError(t, err)
	p, err := proctest.Start(proctest.Options{Dir: t.TempDir(), Name: "kube-controller-manager"}, manager,
		"--kubeconfig="+s.Kubeconfig(t, kubetest.AdminToken), "--controllers=validatingadmissionpolicy-status-controller", "--leader-elect=false", "--secure-port=0")
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	var all admissionv1.ValidatingAdmissionPolicyList
	require.Eventually(t, func() bool {
		a.Do(t, http.MethodGet, path, nil, &all)
		for _, policy := range all.Items {
			if policy.Status.ObservedGeneration != policy.Generation {
				return false
			}
		}
		return true
	}, soon, 100*time.Millisecond, "checked")
	assert.Greater(t, len(all.Items), 6*3)
	for _, policy := range all.Items {
		require.NotNil(t, policy.Status.TypeChecking, policy.Name)
		if policy.Name == "wrong" {
			assert.NotEmpty(t, policy.Status.TypeChecking.ExpressionWarnings, "it looks")
			continue
		}
		assert.Empty(t, policy.Status.TypeChecking.ExpressionWarnings, policy.Name)
	}
}

// TestAdmissionWhere: policies are made for the API servers that have them, unless the values say otherwise.
func TestAdmissionWhere(t *testing.T) {
	t.Parallel()
	const kind = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
	for name, test := range map[string]struct {
		enabled any
		flags   []string
		want    bool
	}{
		"by version":            {"auto", nil, true},
		"the first version":     {"auto", []string{"--kube-version", "1.30.0"}, true},
		"before it":             {"auto", []string{"--kube-version", "1.29.14"}, false},
		"a server without them": {"auto", []string{"--api-versions", "v1/Pod"}, false},
		"a server with them":    {"auto", []string{"--api-versions", "v1/Pod," + kind}, true},
		"alpha ones, no claims": {"auto", []string{"--api-versions", "v1/Pod," + kind, "--kube-version", "1.29.0"}, false},
		"always":                {true, []string{"--kube-version", "1.29.14"}, true},
		"never":                 {false, nil, false},
	} {
		all := mustRender(t, set("admission.enabled", test.enabled), test.flags...)
		assert.Equal(t, test.want, len(all.of("ValidatingAdmissionPolicy")) > 0, name)
		assert.Len(t, all.of("ValidatingAdmissionPolicyBinding"), len(all.of("ValidatingAdmissionPolicy")), name)
	}
	_, err := render(t, set("admission.enabled", "yes"))
	require.ErrorContains(t, err, "at '/admission/enabled'")
	// The agent may evict by default only where the API server was asked for the policies, or the values say that it has them.
	for name, test := range map[string]struct {
		values values
		flags  []string
		want   bool
	}{
		"not asked":             {values{}, nil, false},
		"asked":                 {values{}, []string{"--api-versions", "v1/Pod," + kind}, true},
		"a server without them": {values{}, []string{"--api-versions", "v1/Pod"}, false},
		"an old server":         {values{}, []string{"--api-versions", "v1/Pod," + kind, "--kube-version", "1.29.0"}, false},
		"told":                  {set("admission.enabled", true), nil, true},
		"switched off":          {set("admission.enabled", false), []string{"--api-versions", "v1/Pod," + kind}, false},
		"no repair":             {never, []string{"--api-versions", "v1/Pod," + kind}, false},
		"by choice":             {set("repair.mode", "delete"), []string{"--api-versions", "v1/Pod"}, true},
	} {
		has := grants(t, mustRender(t, test.values, test.flags...), "repair")
		assert.Equal(t, test.want, has["meshcni-node  create /pods/eviction "], name)
		assert.False(t, has["meshcni-node  delete /pods/ "], name)
	}
	// Without tokens of its own the plugin has the agent's.
	consul := values{"dialect": "consul", "writeStatus": true}
	old := one[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, consul, "--kube-version", "1.30.0"), "ValidatingAdmissionPolicy", "meshcni-agent-pods")
	assert.Contains(t, old.Spec.Variables, admissionv1.Variable{Name: "mayAnnotate", Expression: `{"consul.hashicorp.com/transparent-proxy-status":["complete"]}`})
	now := one[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, consul), "ValidatingAdmissionPolicy", "meshcni-agent-pods")
	assert.Contains(t, now.Spec.Variables, admissionv1.Variable{Name: "mayAnnotate", Expression: "{}"})
}
