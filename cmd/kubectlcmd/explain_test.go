package kubectlcmd

import (
	"bytes"
	"errors"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/live"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestExplainCode: what a code means is known without a cluster.
func TestExplainCode(t *testing.T) {
	var out, errs bytes.Buffer
	p := Program{Stdout: &out, Stderr: &errs}
	assert.Equal(t, exitOK, p.Main(t.Context(), []string{"explain", "--code", "not-last"}), errs.String())
	assert.Contains(t, out.String(), "not-last (finding): plugins come after ours in the list")
	assert.Equal(t, exitUsage, p.Main(t.Context(), []string{"explain", "--code", "not-last", "cart"}))
	assert.Equal(t, exitUsage, p.Main(t.Context(), []string{"explain", "--code", "no-such-code"}))
	assert.Contains(t, errs.String(), "not a code of this version")
}

// TestExplain: what should be comes from the cluster and the node's agent, without a flag, and what is stands beside it.
// gone is one of the mesh's rules that is not there.
var gone = []ruleset.Difference{{Kind: ruleset.KindMissing, Family: ruleset.IPv4, Table: "nat", Chain: "OUTPUT", Position: 1, Rule: "-j X"}}

func TestExplain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answers := map[string]agentapi.Pod{}
	base := kubectltest.Sound("a")
	w.Node(t, "a", func(path string) (any, error) {
		if path == agentapi.NodePath {
			return base(path)
		}
		p, ok := answers[path]
		if !ok {
			return nil, errors.New("not asked for")
		}
		return p, nil
	})
	w.Node(t, "b", kubectltest.Silent)
	cart := w.MeshPod(t, "shop", "cart-1", "a", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "cart"}
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "3306"
	})
	quiet := w.MeshPod(t, "quiet", "cart", "a")
	w.MeshPod(t, "shop", "far", "b")
	w.MeshPod(t, "shop", "wrong", "a", func(p *corev1.Pod) {
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "80a"
	})
	w.Do(t, http.MethodPost, "/apis/apps/v1/namespaces/shop/deployments", &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: "cart"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cart"}}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "cart"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, nil)
	w.Do(t, http.MethodPost, "/api/v1/namespaces/shop/events", &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Name: "cart.1", Namespace: "shop"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart-1", UID: cart.UID}, Type: "Warning", Reason: "MeshNotCaptured", Message: "look",
		LastTimestamp: metav1.Unix(1e9, 0),
	}, nil)
	answers[agentapi.PodPath+string(cart.UID)] = agentapi.Pod{
		State:   &status.Pod{ID: status.ID{Namespace: "shop", Name: "cart-1"}, State: "captured", Reason: "recorded"},
		Records: []attachment.Record{{ID: attachment.ID{IfName: "eth0"}, Selected: true, Reason: "selected", Dialect: "istio", Backend: "nftables", By: "ADD", Time: time.Unix(1e9, 0)}},
		Live:    []ruleset.LiveRule{{Backend: ruleset.BackendNftables, Table: "inet istio", Chain: "nat/OUTPUT", Position: 1, Text: "jump", Ours: true, Counters: &ruleset.Counters{Packets: 12}}, {Text: "other"}},
	}
	answers[agentapi.PodPath+string(quiet.UID)] = agentapi.Pod{LiveError: "operation not permitted"}

	for _, name := range [][]string{{"cart-1"}, {"pod/cart-1"}, {"deploy/cart"}, {"deployment", "cart"}, {"deployments.apps", "cart"}} {
		code, out, errOut := w.run(t, append([]string{"explain", "-n", "shop"}, name...)...)
		require.Equal(t, exitOK, code, errOut)
		assert.True(t, strings.HasPrefix(out, "This pod is captured (its rules are there): its connections go through Istio (sidecar)"), out)
		assert.Contains(t, out, "\npod shop/cart-1 is in the mesh (istio)\n")
		assert.Contains(t, out, "configuration: node a: /host/etc/cni/net.d/10-x.conflist\n")
		assert.Contains(t, out, `annotation traffic.sidecar.istio.io/excludeOutboundPorts="3306"`)
		assert.Contains(t, out, `
on node a
  now: captured: recorded
  at 2001-09-09T01:46:40Z ADD: redirected by nftables, 0 rules: selected (istio, eth0)
  live rules: 1 of the mesh, 1 others
  event 2001-09-09T01:46:40Z Warning MeshNotCaptured: look
`)
	}
	code, out, _ := w.run(t, "explain", "-n", "shop", "cart-1", "--brief")
	assert.Equal(t, exitOK, code)
	assert.True(t, strings.HasPrefix(out, "This pod is captured ("), out)
	assert.NotContains(t, out, "on node")
	code, out, _ = w.run(t, "explain", "-n", "shop", "cart-1", "-o", "json", "--brief")
	assert.Equal(t, exitOK, code)
	assert.Equal(t, statuscode.Captured, kubectltest.Decode[briefly](t, out).Now.Code)
	assert.Equal(t, statuscode.Captured, kubectltest.Decode[briefly](t, out).Verdict.Code)
	code, out, _ = w.run(t, "explain", "-n", "shop", "cart-1", "-o", "json")
	assert.Equal(t, exitOK, code)
	x := kubectltest.Decode[struct {
		Decision struct{ Selected bool }
		Verdict  explain.Verdict
		Now      live.Now
		OnNode   live.OnNode
	}](t, out)
	assert.Equal(t, statuscode.Captured, x.Now.Code)
	assert.Equal(t, status.StateCaptured, x.Verdict.State)
	assert.True(t, x.Decision.Selected)
	assert.Equal(t, status.StateCaptured, x.OnNode.State.State)
	assert.Len(t, x.OnNode.Events, 1)

	code, out, _ = w.run(t, "explain", "-n", "quiet", "cart")
	assert.Equal(t, exitWrong, code, "it has a proxy, and should not be captured")
	assert.True(t, strings.HasPrefix(out, `This pod bypasses the mesh: it has been chosen for it, and the plugin leaves its namespace alone.
  This pod is not captured, because the plugin's configuration excludes its namespace, quiet.
What to do:
`), out)
	assert.Contains(t, out, "pod quiet/cart is not in the mesh (istio)\n  excluded-namespace: ", "as its node's agent has it")
	assert.Contains(t, out, "live rules: not known: operation not permitted\n")

	w.MeshPod(t, "shop", "hosts", "a", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	code, out, _ = w.run(t, "explain", "-n", "shop", "hosts")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "host-network: ")
	assert.Contains(t, out, "live rules: not known: the pod is on the host's network, which is never redirected\n")

	captured := answers[agentapi.PodPath+string(cart.UID)]
	drifted := captured
	drifted.Differences, drifted.Lost = gone, gone
	answers[agentapi.PodPath+string(cart.UID)] = drifted
	code, out, _ = w.run(t, "explain", "-n", "shop", "cart-1")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, out, "  LOST since ADD: ipv4 nat/OUTPUT:1 missing: -j X\n")

	// Of a pod that the agent does not count, its rules or its record say how it is, and if neither does, nothing is known.
	for _, test := range []struct {
		is   agentapi.Pod
		code int
		says string
	}{
		{agentapi.Pod{LiveError: "operation not permitted"}, exitUnknown, "  nothing says whether the pod has its rules\n"},
		{agentapi.Pod{LiveError: "operation not permitted", Records: []attachment.Record{{Reason: "no-proxy"}}}, exitUnknown, "  nothing says whether the pod has its rules\n"},
		{agentapi.Pod{LiveError: "operation not permitted", Records: []attachment.Record{{Selected: true}}}, exitOK, ""},
		{agentapi.Pod{Live: []ruleset.LiveRule{{Text: "other"}}}, exitWrong, "  none of the mesh's rules are there: the pod bypasses the mesh\n"},
		{agentapi.Pod{Live: []ruleset.LiveRule{{Text: "jump", Ours: true}}}, exitOK, ""},
	} {
		answers[agentapi.PodPath+string(cart.UID)] = test.is
		code, out, _ = w.run(t, "explain", "-n", "shop", "cart-1")
		assert.Equal(t, test.code, code, out)
		assert.Contains(t, out, test.says)
		code, _, _ = w.run(t, "explain", "-n", "shop", "cart-1", "-o", "json")
		assert.Equal(t, test.code, code, out)
	}
	answers[agentapi.PodPath+string(cart.UID)] = drifted

	code, out, _ = w.run(t, "explain", "-n", "shop", "wrong")
	assert.Equal(t, exitWrong, code)
	assert.Equal(t, 1, strings.Count(out, `annotation traffic.sidecar.istio.io/excludeOutboundPorts="80a": `), "what is wrong is said once: %s", out)
	_, _, errOut := w.run(t, "explain", "-n", "shop", "cart")
	assert.Contains(t, errOut, `namespace shop: pods "cart" not found (a workload is named with its kind, such as deployment/cart;`)

	code, out, _ = w.run(t, "explain", "-n", "shop", "cart-1", "--brief", "--agent-selector", "app=other")
	assert.Equal(t, exitWrong, code)
	assert.True(t, strings.HasPrefix(out, "meshcni does not seem to be installed: no node of this cluster has its agent"), out)

	code, out, errOut = w.run(t, "explain", "-n", "shop", "far")
	assert.Equal(t, exitWrong, code)
	assert.Equal(t, "The agent of node b does not answer, so it is not known how this pod is.", kubectltest.Lines(out)[0])
	assert.NotContains(t, out, "is in the mesh", "what decides is not known")
	assert.Contains(t, errOut, "connection refused\n")
	assert.Contains(t, errOut, "--config FILE gives one")
	code, out, _ = w.run(t, "explain", "-n", "shop", "far", "--config", "none")
	assert.Equal(t, exitUnknown, code)
	assert.Contains(t, out, "pod shop/far is in the mesh")
	assert.Contains(t, out, "  unknown: ask agent meshcni-system/meshcni-node-b: connection refused\n")

	// A configuration that is typed counts for one pod and for many, whichever plugin of its network the entry is.
	typed := filepath.Join(t.TempDir(), "typed.conflist")
	require.NoError(t, os.WriteFile(typed, []byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge"}, {"type": "meshcni", "kubernetes": {"exclude_namespaces": ["shop"]}}]}`), 0o600))
	for _, pods := range [][]string{{"cart-1"}, {"-l", "app=cart"}} {
		_, out, errOut = w.run(t, append([]string{"explain", "-n", "shop", "-o", "json", "--brief", "--config", typed}, pods...)...)
		assert.Contains(t, out, `"code": "excluded-namespace"`, errOut)
	}
	require.NoError(t, os.WriteFile(typed, []byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge"}]}`), 0o600))
	code, _, errOut = w.run(t, "explain", "-n", "shop", "cart-1", "--config", typed)
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errOut, "--config: "+typed+" has no entry of type meshcni")

	code, out, _ = w.run(t, "rules", "-n", "shop", "cart-1", "--family", "4")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "# configuration: node a: ")
	assert.Contains(t, out, "--dport 3306")
	code, out, _ = w.run(t, "trace", "-n", "shop", "deploy/cart", "--dst", "10.96.5.5", "--dport", "80", "--uid", "1000")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "redirect 15001: outbound connection")
	code, out, _ = w.run(t, "show", "-n", "shop", "cart-1")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "nftables, table inet istio\n")
	assert.Regexp(t, `nat/OUTPUT +1 +12 +0 +jump`, out)
	code, _, errOut = w.run(t, "show", "-n", "quiet", "cart")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errOut, "the live rules of pod quiet/cart are not known: operation not permitted (--enter reads them, by a short-lived pod on the node)\n")

	// Of several pods, one line each.
	code, out, errOut = w.run(t, "explain", "-n", "shop", "-l", "app in (cart, wrong)")
	assert.Equal(t, exitWrong, code, errOut)
	require.Len(t, kubectltest.Lines(out), 3, out)
	assert.Equal(t, "cart-1: This pod has lost rules, or has others.", kubectltest.Lines(out)[0])
	assert.Equal(t, "wrong: This pod runs, and would not start again: its settings are refused now.", kubectltest.Lines(out)[1])
	assert.Equal(t, "next: kubectl meshcni explain -n shop cart-1 says what to do", kubectltest.Lines(out)[2])
	code, out, _ = w.run(t, "explain", "-n", "shop", "-l", "app=far")
	assert.Equal(t, exitUnknown, code)
	assert.Contains(t, out, "far: The agent of node b does not answer")
	code, out, _ = w.run(t, "explain", "-n", "shop", "deploy/cart", "--all-pods", "-o", "json")
	assert.Equal(t, exitWrong, code)
	assert.Equal(t, statuscode.RulesLost, kubectltest.Decode[[]podLine](t, out)[0].Now.Code)
	code, _, errOut = w.run(t, "explain", "-n", "shop", "-l", "app=nobody")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errOut, "no pod in namespace shop has the labels app=nobody")

	// A file with a pod or a workload is explained by what is in force on the nodes, and by the namespace as it is.
	file := filepath.Join(t.TempDir(), "cart.yaml")
	template := `{"metadata": {"annotations": {"sidecar.istio.io/status": "{}"}}, "spec": {"containers": [{"name": "istio-proxy"}]}}`
	require.NoError(t, os.WriteFile(file, []byte(`{"kind": "Deployment", "metadata": {"name": "new", "namespace": "quiet"}, "spec": {"template": `+template+`}}`), 0o600))
	code, out, errOut = w.run(t, "explain", "-f", file)
	assert.Equal(t, exitOK, code, errOut)
	assert.True(t, strings.HasPrefix(out, "This pod is not captured, because the plugin's configuration excludes its namespace, quiet.\n"), out)
	assert.Contains(t, out, "rollout restart deployment/new\n")
	assert.Contains(t, out, "configuration: node a: /host/etc/cni/net.d/10-x.conflist\n")
	assert.NotContains(t, out, "on node")
	require.NoError(t, os.WriteFile(file, []byte(`{"kind": "Deployment", "metadata": {"name": "new"}, "spec": {"template": `+template+`}}`), 0o600))
	code, out, errOut = w.run(t, "explain", "-n", "shop", "--brief", "-f", file)
	assert.Equal(t, exitOK, code, errOut)
	assert.True(t, strings.HasPrefix(out, "The plugin captures this pod: "), out)
	code, out, errOut = w.run(t, "explain", "-n", "quiet", "-o", "json", "-f", file)
	assert.Equal(t, exitOK, code, errOut)
	assert.Equal(t, status.Code("excluded-namespace"), kubectltest.Decode[briefly](t, out).Verdict.Code)
	code, out, errOut = w.run(t, "rules", "-n", "shop", "-f", file)
	assert.Equal(t, exitOK, code, errOut)
	assert.Contains(t, out, "-j ISTIO_OUTPUT")
	assert.Contains(t, errOut, "this is a workload's template")
	code, _, errOut = w.run(t, "explain", "-f", file+"x")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errOut, "--filename "+file+"x: open ")
	code, _, _ = w.run(t, "explain", "-f", file, "cart-1")
	assert.Equal(t, exitUsage, code)

	for _, wrong := range [][]string{{"explain", "cart-1", "--all-pods"}, {"explain", "cart-1", "-l", "a"}, {"explain", "deploy/cart", "--all-pods", "-l", "a"}, {"explain"}, {"explain", "a", "b", "c"}, {"show", "node/a"}, {"explain", "deploy/"}, {"rules", "--direction", "in", "x"}} {
		code, _, errOut = w.run(t, wrong...)
		assert.Equal(t, exitUsage, code, "%s: %s", wrong, errOut)
	}
	code, _, errOut = w.run(t, "explain", "-n", "shop", "nobody")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errOut, `pods "nobody" not found`)

	// The shell gets the names of pods and namespaces.
	for _, command := range []string{"explain", "rules", "trace", "show"} {
		_, out, _ := w.run(t, "__complete", "-n", "shop", command, "")
		assert.Contains(t, out, "cart-1\nfar\nhosts\nwrong\n", command)
	}
	_, out, _ = w.run(t, "__complete", "explain", "-n", "")
	assert.Contains(t, out, "shop\n")

	w.MeshPod(t, "shop", "cart-2", "a", func(p *corev1.Pod) {
		p.Labels, p.Status = map[string]string{"app": "cart"}, corev1.PodStatus{Phase: corev1.PodPending}
	})
	answers[agentapi.PodPath+string(cart.UID)] = captured
	code, out, errOut = w.run(t, "explain", "-n", "shop", "deploy/cart", "--brief")
	assert.Equal(t, exitUnknown, code, "the one that does not run yet")
	assert.Contains(t, errOut, "pod cart-2, one of 2 of deployment/cart, which has trouble\n")
	assert.Contains(t, out, "This pod has no network yet")
	late := w.MeshPod(t, "shop", "cart-3", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "cart"} })
	state := status.Pod{ID: status.ID{Namespace: "shop", Name: "cart-3", UID: string(late.UID)}, State: status.StateFailed, Reason: "not-called"}
	answers[agentapi.PodPath+string(late.UID)] = agentapi.Pod{State: &state}
	base = kubectltest.Sound("a", func(n *agentapi.Node) { n.Pods = append(n.Pods, state) })
	code, out, errOut = w.run(t, "explain", "-n", "shop", "deploy/cart", "--brief")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errOut, "pod cart-3, one of 3 of deployment/cart, which has trouble; 1 other has too: kubectl meshcni explain --all-pods says how each is\n")
	assert.True(t, strings.HasPrefix(out, "This pod bypasses the mesh: it started before the plugin was on its node"), out)
	_, _, errOut = w.run(t, "trace", "-n", "shop", "deploy/cart", "--direction", "out", "--proto", "tcp", "--dst", "10.0.0.1", "--dport", "80")
	assert.Contains(t, errOut, "pod cart-1, one of 3 of deployment/cart\n")
}

// TestExplainUnreadableNamespace: where the namespace decides and may not be read, nothing is known to be wrong, and nothing to be well.
func TestExplainUnreadableNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Node(t, "a", func(path string) (any, error) {
		if path == agentapi.NodePath {
			return kubectltest.Sound("a", func(n *agentapi.Node) {
				n.Installed.Config = []byte(strings.Replace(kubectltest.Entry, `"dialect":"istio"`, `"dialect":"ambient"`, 1))
			})(path)
		}
		return agentapi.Pod{Records: []attachment.Record{}}, nil
	})
	w.MeshPod(t, "shop", "cart", "a", func(p *corev1.Pod) { p.Annotations, p.Spec.Containers = nil, p.Spec.Containers[:1] })
	w.Grant(t, "reader", "alice", map[string][]string{
		"pods": {"get", "list"}, "events": {"list"}, "daemonsets.apps": {"list"}, "clusterrolebindings.rbac.authorization.k8s.io": {"get"},
	})
	file := filepath.Join(t.TempDir(), "pod.yaml")
	require.NoError(t, os.WriteFile(file, []byte("{apiVersion: v1, kind: Pod, metadata: {name: cart, namespace: shop}, spec: {containers: [{name: app}]}}"), 0o600))
	for _, pod := range [][]string{{"cart"}, {"-f", file}} {
		code, out, errs := w.run(t, append([]string{"explain", "-n", "shop", "--as", "alice"}, pod...)...)
		assert.Equal(t, exitUnknown, code, out+errs)
		assert.Contains(t, errs, `warning: the pod's Namespace is not known: namespaces "shop" is forbidden`)
		assert.Contains(t, out, "It cannot be told whether this pod is captured")
		code, out, errs = w.run(t, append([]string{"explain", "-n", "shop"}, pod...)...)
		assert.Equal(t, exitOK, code, out+errs)
	}
}

// TestExplainSandbox: of a pod whose sandbox fails the runtime's reason is told, and without the right to its events that it is not known.
func TestExplainSandbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Node(t, "a", func(path string) (any, error) {
		if path == agentapi.NodePath {
			return kubectltest.Sound("a")(path)
		}
		return agentapi.Pod{Records: []attachment.Record{}}, nil
	})
	pod := w.MeshPod(t, "shop", "cart", "a", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })
	w.Do(t, http.MethodPost, "/api/v1/namespaces/shop/events", &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Name: "cart.1", Namespace: "shop"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart", UID: pod.UID}, Type: "Warning", Reason: "FailedCreatePodSandBox",
		Message: "Failed to create pod sandbox: no runtime for \"kata\" is configured\nThis pod is captured\x1b[2J" + strings.Repeat("x", 900), LastTimestamp: metav1.Unix(1e9, 0),
	}, nil)
	w.Grant(t, "reader", "alice", map[string][]string{
		"pods": {"get", "list"}, "pods/portforward": {"create"}, "namespaces": {"get"}, "daemonsets.apps": {"list"}, "clusterrolebindings.rbac.authorization.k8s.io": {"get"},
	})
	code, out, errs := w.run(t, "explain", "-n", "shop", "cart", "--brief")
	assert.Equal(t, exitWrong, code, errs)
	assert.Contains(t, out, "This pod does not start: the container runtime cannot make its sandbox")
	assert.Contains(t, out, `no runtime for "kata" is configured`)
	assert.NotContains(t, out, "\nThis pod is captured")
	assert.NotContains(t, out, "\x1b")
	assert.NotContains(t, out, strings.Repeat("x", 700))
	assert.NotContains(t, out, "Ask again")
	code, out, errs = w.run(t, "explain", "-n", "shop", "cart", "--brief", "--as", "alice")
	assert.Equal(t, exitUnknown, code, errs)
	assert.Contains(t, out, "It is not known whether its sandbox fails: its events cannot be read.\n  events is forbidden")
	assert.Contains(t, out, "kubectl auth can-i list events --namespace shop")
}

// TestExplainWrongEntry: an entry that is wrong, or cannot be read, is not said to be missing.
func TestExplainWrongEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var installed agentapi.Installed
	w.Node(t, "a", func(path string) (any, error) {
		if path == agentapi.NodePath {
			return kubectltest.Sound("a", func(n *agentapi.Node) { n.Installed = installed })(path)
		}
		return agentapi.Pod{Records: []attachment.Record{}}, nil
	})
	w.MeshPod(t, "shop", "cart", "a")
	for says, is := range map[string]agentapi.Installed{
		"the plugin's entry on node a is wrong: 10-x.conflist, with which no pod starts: dialect osm": {File: "10-x.conflist", Error: "10-x.conflist, with which no pod starts: dialect osm"},
		"it is not known whether node a has a configuration of the plugin: permission denied":         {Unread: true, Error: "permission denied"},
		"node a has no configuration of the plugin: no entry":                                         {Error: "no entry"},
	} {
		installed = is
		code, out, errs := w.run(t, "explain", "-n", "shop", "cart")
		assert.NotEqual(t, exitOK, code, says)
		assert.Contains(t, out+errs, says)
		assert.Equal(t, is.File == "" && !is.Unread, strings.Contains(out+errs, "has no configuration"), out+errs)
	}
}
