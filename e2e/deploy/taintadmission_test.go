package deploy_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// TestTaintControllerEndsAtTaints: with the policies of the chart, a real API server lets the controller's account change of a node the
// taints of its keys and nothing else, and write of other objects its Lease and events, whatever its roles grant.
func TestTaintControllerEndsAtTaints(t *testing.T) {
	t.Parallel()
	const key, foreign = "mesh.example/wait", "cni.istio.io/not-ready"
	s := kubetest.Own(t, kubetest.Options{})
	g := guard(t, s, values{"taint": values{"enabled": true, "key": key, "alsoRemove": []string{foreign}}})
	const account = "meshcni-node-taint"
	g.ServiceAccount(t, g.namespace, account)
	g.Do(t, http.MethodPost, collection("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", ""), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: g.namespace + "-" + account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: g.namespace, Name: account}},
	}, nil)
	token := g.token(t, account, nil)

	taint := func(key, value string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: value, Effect: effect}
	}
	const sched, exec = corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute
	theirs, gpu := taint("their.example/a", "x", sched), taint("their.example/gpu", "", exec)
	ours, back, peers := taint(key, "", sched), taint(key, "put-back", sched), taint(foreign, "true", sched)
	for name, taints := range map[string][]corev1.Taint{"clean": {theirs, gpu}, "new": {theirs, ours, gpu, peers}, "tainted": {theirs, gpu, back}, "bare": nil, "less": nil} {
		g.Do(t, http.MethodPost, "/api/v1/nodes", &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"note": "mine"}, Finalizers: []string{"mesh.example/wait"}},
			Spec:       corev1.NodeSpec{Taints: taints, ProviderID: "cloud://1"},
		}, nil)
	}
	patch := func(what, node string, body values, says string) request {
		return request{what, token, http.MethodPatch, "/api/v1/nodes/" + node, body, says}
	}
	taints := func(what, node, says string, all ...corev1.Taint) request {
		return patch(what, node, values{"spec": values{"taints": append([]corev1.Taint{}, all...)}}, says)
	}
	lease := func(what, method, name, says string) request {
		return g.lease(what, token, method, name, "anybody", says)
	}
	const notKeys, notAdded, notElse = "may change no taints but " + key + ", " + foreign, "may add no taint but " + key + "=put-back:NoSchedule", "may change nothing of a node but its taints"
	var is, after corev1.Node
	g.Do(t, http.MethodGet, "/api/v1/nodes/bare", nil, &is)
	rest := is.Spec.Taints // what the API server itself adds to a new Node

	g.judge(t, []request{
		taints("another's away", "clean", notKeys, append([]corev1.Taint{theirs}, rest...)...),
		taints("all away", "clean", notKeys),
		taints("another's value", "clean", notKeys, append([]corev1.Taint{taint(theirs.Key, "y", sched), gpu}, rest...)...),
		taints("another's effect", "clean", notKeys, append([]corev1.Taint{theirs, taint(gpu.Key, "", sched)}, rest...)...),
		taints("another key", "clean", notKeys, append([]corev1.Taint{theirs, gpu, taint("evil.example/x", "", exec)}, rest...)...),
		taints("pods thrown off", "clean", notAdded, append([]corev1.Taint{theirs, gpu, taint(key, "put-back", exec)}, rest...)...),
		taints("as at a registration", "clean", notAdded, append([]corev1.Taint{theirs, gpu, ours}, rest...)...),
		taints("the peer's put back", "clean", notAdded, append([]corev1.Taint{theirs, gpu, peers}, rest...)...),
		patch("a label", "clean", mark("labels", "a", "c"), notElse),
		patch("a label less", "clean", mark("labels", "a", nil), notElse),
		patch("an annotation", "clean", mark("annotations", "new", "x"), notElse),
		patch("a finalizer", "clean", values{"metadata": values{"finalizers": []string{"a.b/c"}}}, notElse),
		patch("cordoned", "clean", values{"spec": values{"unschedulable": true}}, notElse),
		patch("its addresses", "bare", values{"spec": values{"podCIDR": "10.9.0.0/24", "podCIDRs": []string{"10.9.0.0/24"}}}, notElse),
		{"its status", token, http.MethodPatch, "/api/v1/nodes/clean/status", values{"status": values{"phase": "Running"}}, mayNot + "UPDATE nodes/status"},
		{"a node less", token, http.MethodDelete, "/api/v1/nodes/less", nil, mayNot + "DELETE nodes"},
		{"a node more", token, http.MethodPost, "/api/v1/nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "more"}}, mayNot + "CREATE nodes"},
		{"anything else", token, http.MethodPost, collection("v1", "ConfigMap", g.pods), values{"apiVersion": "v1", "kind": "ConfigMap", "metadata": values{"name": "new"}}, mayNot + "CREATE configmaps"},
		lease("another lease", http.MethodPost, "kube-scheduler", "may write the lease "+g.namespace+"/"+account+" only"),
		g.event("about a pod", token, "x", "Pod", "web-1", "", "may write events about nodes and the DaemonSet of the agents only"),

		taints("put back", "clean", "", append([]corev1.Taint{theirs, gpu, back}, rest...)...),
		taints("put back again", "clean", "", append([]corev1.Taint{theirs, gpu, back}, rest...)...),
		taints("the first taint", "bare", "", append([]corev1.Taint{back}, rest...)...),
		taints("removed, with the peer's", "new", "", append([]corev1.Taint{theirs, gpu}, rest...)...),
		taints("removed", "tainted", "", append([]corev1.Taint{theirs, gpu}, rest...)...),
		lease("its lease", http.MethodPost, account, ""), lease("its lease again", http.MethodPatch, account, ""),
		g.event("about a Node", token, "taint-event-"+g.pods, "Node", "clean", "", ""),
		{"read", token, http.MethodGet, kubetest.PodPath(g.pods, "web-2"), nil, ""},
	})
	g.Do(t, http.MethodGet, "/api/v1/nodes/new", nil, &after)
	require.Equal(t, append([]corev1.Taint{theirs, gpu}, rest...), after.Spec.Taints)
}
