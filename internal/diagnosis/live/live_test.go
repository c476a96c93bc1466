package live

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// running is a pod of a Deployment in an Istio mesh, which runs.
func running(t *testing.T, change ...func(*Pod)) Pod {
	t.Helper()
	controller := true
	p := Pod{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "cart-5d-x", UID: "u", Labels: map[string]string{"pod-template-hash": "5d"}, Annotations: map[string]string{"sidecar.istio.io/status": "{}"},
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "cart-5d", Controller: &controller}},
			},
			Spec:   corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.5"},
		},
		Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, AgentLabels: "component=node", Agent: types.NamespacedName{Namespace: "meshcni-system", Name: "meshcni-node-x"},
		Node: agentapi.Node{Node: "a", Ready: true, About: agentapi.About{Installed: agentapi.Installed{File: "/etc/cni/net.d/10-x.conflist", Config: []byte("{}")}}},
	}
	for _, c := range change {
		c(&p)
	}
	c := netconf.Config{Dialects: netconf.Dialects{"istio"}}
	c.Kubernetes.ExcludeNamespaces = []string{"kube-system", "quiet"}
	if p.Namespace == nil {
		c.Dialects = netconf.Dialects{"ambient", "istio"}
	}
	var err error
	p.Meshes, err = dialect.Configure(builtin.All(), c)
	require.NoError(t, err)
	subject := dialect.Subject{Pod: p.Pod, Namespace: p.Namespace, Addrs: explain.Addrs(p.Pod)}
	p.Explained, err = explain.Pod(p.Meshes, explain.Input{Subject: subject, Facts: facts.All(), Online: true})
	require.NoError(t, err)
	return p
}

func pending(p *Pod) { p.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }

func notReady(p *Pod) {
	p.Node.Ready, p.Node.News = false, []status.News{{Kind: status.KindReadiness, Code: "no-kubeconfig", Text: "it is not there"}}
}

// TestTroubles: of all that is wrong with a pod the cause is told, with what helps, and nothing else first.
func TestTroubles(t *testing.T) {
	const restart = "kubectl --namespace shop rollout restart deployment/cart"
	state := func(c status.State, reason status.Code) OnNode {
		return OnNode{Pod: agentapi.Pod{State: &status.Pod{State: c, Reason: reason}}}
	}
	sandbox := func(message string) OnNode {
		return OnNode{Events: []Event{{Reason: "FailedCreatePodSandBox", Message: "an older one"}, {Reason: "FailedCreatePodSandBox", Message: message}, {Reason: "Scheduled"}}}
	}
	wrong := func(p *Pod) {
		p.Pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "80a"
	}
	noInbound, noOutbound := [2]string{"includeInboundPorts", ""}, [2]string{"excludeOutboundIPRanges", "0.0.0.0/0,::/0"}
	leavingOut := func(settings ...[2]string) func(*Pod) {
		return func(p *Pod) {
			for _, s := range settings {
				p.Pod.Annotations["traffic.sidecar.istio.io/"+s[0]] = s[1]
			}
		}
	}
	seen := map[status.Code]bool{}
	captured := state(status.StateCaptured, "recorded")
	lost := captured
	unsure := state(status.StateCaptured, "recorded")
	unsure.Live, unsure.Differences = []ruleset.LiveRule{{Ours: true}}, []ruleset.Difference{{Kind: ruleset.KindUnknown, Family: ruleset.IPv4, Chain: "outbound", Rule: "-m x"}}
	past := unsure
	past.Lost = []ruleset.Difference{{Kind: ruleset.KindFate, Family: ruleset.IPv4, Chain: "outbound", Rule: "passes"}}
	lost.Lost, lost.Live = []ruleset.Difference{{Kind: ruleset.KindMissing, Family: ruleset.IPv4, Table: "nat", Chain: "OUTPUT", Position: 1, Rule: "-j X"}}, []ruleset.LiveRule{{Ours: true}}
	flushed := lost
	flushed.Live = []ruleset.LiveRule{{Text: "other"}}
	unread := captured
	unread.LiveError, unread.Hint = "operation not permitted", "--enter reads them"
	for _, test := range []struct {
		name     string
		change   []func(*Pod)
		is       OnNode
		code     status.Code
		health   Health
		sentence string
		because  string
		do       []string // in order, a part of each
	}{
		{"captured", nil, captured, statuscode.Captured, Well, "This pod is captured (the plugin wrote its rules when it started): its connections go through Istio (sidecar)", "", nil},
		{"captured in part", []func(*Pod){leavingOut(noInbound)}, captured, statuscode.Captured, Well, "): its connections go through Istio (sidecar), but no inbound ones.", "", nil},
		{"nothing captured", []func(*Pod){leavingOut(noInbound, noOutbound)}, captured, statuscode.Bypassing, Wrong, "Nothing of this pod is captured", "", []string{"Exclude less", "Then restart it"}},
		{"nothing captured, by the agent", []func(*Pod){leavingOut(noInbound, noOutbound)}, state(status.StateFailed, status.CodeNothingCaptured), statuscode.Bypassing, Wrong, "its settings leave out every connection", "", []string{"Exclude less", restart}},
		{"captured, by a mesh of its own", nil, state(status.StateCaptured, "acme"), statuscode.Captured, Well, "(the agent of its node says so: acme)", "", nil},
		{"captured by the record alone", nil, unread, statuscode.Captured, Well, "(the plugin wrote its rules when it started)", "Whether its rules are still there was not looked at, since the agent may not enter pods; --enter reads them", nil},
		{"started before the plugin", nil, state(status.StateFailed, "not-called"), statuscode.Bypassing, Wrong, "it started before the plugin was on its node", "", []string{restart}},
		{"the same, node not ready", []func(*Pod){notReady}, state(status.StateFailed, "not-called"), statuscode.Bypassing, Wrong, "bypasses the mesh", "no-kubeconfig: it is not there", []string{"First make the node's agent ready", restart}},
		{"passed over", nil, state(status.StateFailed, "passed-over"), statuscode.Bypassing, Wrong, "would not do so now", "", []string{restart}},
		{"drifted", nil, state(status.StateDrifted, "rules"), statuscode.RulesLost, Wrong, "it has other rules than it should have", "", []string{restart, "find out who"}},
		{"cannot be told", nil, unsure, statuscode.Unknown, Unsure, "somebody else's rule is before them", "ipv4 outbound, cannot tell: -m x", []string{"Remove the rule that is named", restart}},
		{"past its rules", nil, past, statuscode.RulesLost, Wrong, "its rules are there, and somebody else's keep its packets from them", "ipv4 outbound: passes", []string{"Remove the rule that is named", restart}},
		{"handed on", nil, OnNode{Pod: agentapi.Pod{Live: []ruleset.LiveRule{{Ours: true}}, Bypasses: []dialect.Bypass{{Code: dialect.BypassSandboxed, Interface: "eth0", HandedTo: "tap0, by tc"}}}}, statuscode.Bypassing, Wrong, "its packets do not meet its rules", `interface "eth0" is handed on to "tap0, by tc"`, []string{"Give it a runtime class"}},
		{"handed on, perhaps", nil, OnNode{Pod: agentapi.Pod{Live: []ruleset.LiveRule{{Ours: true}}, Bypasses: []dialect.Bypass{{Code: dialect.BypassSandboxed, Interface: "eth0", HandedTo: "an XDP program", Unsure: true}}}}, statuscode.Unknown, Unsure, "cannot be told", `seen first by "an XDP program"`, []string{"Find out"}},
		{"interfaces unread", nil, OnNode{Pod: agentapi.Pod{Live: []ruleset.LiveRule{{Ours: true}}, BypassError: "too many"}}, statuscode.Unknown, Unsure, "cannot be told", "too many", []string{"Ask again"}},
		{"lost", nil, lost, statuscode.RulesLost, Wrong, "has lost rules", "ipv4 nat/OUTPUT:1 missing: -j X", []string{restart, "kubectl meshcni show"}},
		{"lost all", nil, flushed, statuscode.Bypassing, Wrong, "it had rules, and none of them are there any more", "", []string{restart, "kubectl meshcni show"}},
		{"waits for the proxy", nil, state(status.StateWaiting, "no-proxy"), statuscode.Waiting, Wrong, "not captured yet: no proxy of its node is connected", "", []string{"ztunnel"}},
		{"cannot tell", nil, state(status.StateUnknown, "no-trace"), statuscode.Unknown, Unsure, "It is not known whether this pod is captured", "", []string{"To be sure, restart it: " + restart, "--cni-cache-dir"}},
		{"no rules at all", nil, OnNode{}, statuscode.Bypassing, Wrong, "none of its rules are there", "", []string{restart}},
		{"nobody can look", nil, OnNode{Pod: agentapi.Pod{LiveError: "operation not permitted"}}, statuscode.Unknown, Unsure, "nothing says whether the pod has its rules", "", []string{restart}},
		{"nobody can look, ADD did", nil, OnNode{Pod: agentapi.Pod{LiveError: "operation not permitted", Records: []attachment.Record{{Selected: true}}}}, statuscode.Captured, Well, "the plugin wrote its rules", "Whether its rules are still there was not looked at", nil},
		{"its rules are there", nil, OnNode{Pod: agentapi.Pod{Live: []ruleset.LiveRule{{Ours: true}}}}, statuscode.Captured, Well, "This pod is captured (its rules are there): its", "", nil},
		{"refused", []func(*Pod){wrong, pending}, sandbox(`plugin type="meshcni" failed (add): x`), status.CodeRefused, Wrong, "This pod is refused, and does not start", `excludeOutboundPorts="80a"`, []string{"Give the annotation traffic.sidecar.istio.io/excludeOutboundPorts a value that is allowed", "Correct it where"}},
		{"would be refused", []func(*Pod){wrong}, captured, statuscode.WouldRefuse, Wrong, "would not start again", `excludeOutboundPorts="80a"`, []string{"Give the annotation", "Correct it where"}},
		{"the plugin fails", []func(*Pod){pending, notReady}, sandbox(`rpc error: plugin type="meshcni" failed (add): read kubeconfig: no such file`), statuscode.NetworkFailed, Wrong, "the plugin refuses to", "read kubeconfig: no such file", []string{"First make the node's agent ready", "Mend what the message names"}},
		{"another plugin fails", []func(*Pod){pending}, sandbox(`plugin type="calico" failed (add): x`), statuscode.NetworkFailed, Wrong, "not said to be this plugin's", "calico", []string{"another CNI plugin"}},
		{"its runtime is not there", []func(*Pod){pending}, sandbox(`rpc error: no runtime for "kata" is configured`), statuscode.NetworkFailed, Wrong, "the container runtime cannot make its sandbox", `no runtime for "kata"`, []string{"the container runtime"}},
		{"its sandbox fails, no agent", []func(*Pod){pending, func(p *Pod) { p.Asking = fmt.Errorf("node a: %w", agents.ErrNoAgent) }}, sandbox(`failed to find plugin "meshcni"`), statuscode.NoAgent, Wrong, "has no agent", `the container runtime says: failed to find plugin "meshcni"`, []string{"kubectl get daemonset", "restart"}},
		{"its sandbox fails, agent silent", []func(*Pod){pending, func(p *Pod) { p.Asking = errors.New("connection refused") }}, sandbox("x y"), statuscode.AgentSilent, Unsure, "does not answer", "the container runtime says: x y", []string{"describe pod meshcni-node-x", "can-i create pods/portforward"}},
		{"something fails before", []func(*Pod){pending}, OnNode{Events: []Event{{Type: "Warning", Reason: "FailedMount", Message: "no secret"}, {Type: "Warning", Reason: "MeshNotCaptured"}, {Type: "Normal", Reason: "Scheduled"}}}, statuscode.Starting, Unsure, "something fails", "FailedMount: no secret", []string{"Mend what the message names, if it goes on: kubectl --namespace shop describe pod"}},
		{"its events are not known", []func(*Pod){pending}, OnNode{EventsError: "events is forbidden"}, statuscode.Starting, Unsure, "not known whether its sandbox fails", "events is forbidden", []string{"kubectl auth can-i list events --namespace shop", "describe pod"}},
		{"starting", []func(*Pod){pending}, OnNode{}, statuscode.Starting, Unsure, "has no network yet", "", []string{"Ask again in a few seconds; if it stays so: kubectl --namespace shop describe pod"}},
		{"starting, the agent knows why not", []func(*Pod){pending}, state(status.StateWaiting, "add-failed"), statuscode.NetworkFailed, Wrong, "does not start: the plugin could not set it up", "", []string{"Mend what is named"}},
		{"refused by what decided then", []func(*Pod){pending}, state(status.StateWaiting, "pod-refused"), status.CodeRefused, Wrong, "does not start: its settings are refused", "", []string{"Correct the settings"}},
		{"unscheduled", []func(*Pod){pending, func(p *Pod) { p.Pod.Spec.NodeName = "" }}, OnNode{Events: []Event{{Reason: "FailedScheduling", Message: "0/1 nodes: untolerated taint {meshcni.io/agent-not-ready: }"}}}, statuscode.Unscheduled, Unsure, "on no node yet", "0/1 nodes", []string{"kubectl meshcni status"}},
		{"no agent", []func(*Pod){func(p *Pod) { p.Asking = fmt.Errorf("node a: %w", agents.ErrNoAgent) }}, OnNode{}, statuscode.NoAgent, Wrong, "Node a, where this pod is, has no agent", "", []string{"kubectl get daemonset", restart}},
		{"no agent anywhere", []func(*Pod){func(p *Pod) { p.Asking = fmt.Errorf("node a: %w", agents.ErrNoAgents) }}, OnNode{}, statuscode.NoAgent, Wrong, "meshcni does not seem to be installed", "", []string{"kubectl get daemonset", "install the chart", restart}},
		{"silent", []func(*Pod){func(p *Pod) { p.Asking = errors.New("connection refused") }}, OnNode{Unknown: "connection refused"}, statuscode.AgentSilent, Unsure, "does not answer", "connection refused", []string{"describe pod meshcni-node-x", "can-i create pods/portforward"}},
		{"not chained", []func(*Pod){notReady, func(p *Pod) { p.Node.Installed = agentapi.Installed{Error: "x"} }}, OnNode{}, statuscode.NotInstalled, Wrong, "has the plugin's entry", "no-kubeconfig", []string{"logs meshcni-node-x", restart}},
		{"excluded, and injected", []func(*Pod){func(p *Pod) { p.Pod.Namespace = "quiet" }}, OnNode{}, statuscode.ExcludedInjected, Wrong, "bypasses the mesh", "excludes its namespace, quiet", []string{"Nothing, if", "take quiet out", "rollout restart", "Or keep the pod out"}},
		{"another mesh's", []func(*Pod){func(p *Pod) { p.Pod.Spec.Containers[1].Name = "linkerd-proxy" }}, OnNode{}, statuscode.OtherDialect, Wrong, "it is of the mesh Linkerd", "", []string{"Add linkerd", "rollout restart"}},
		{"outside", []func(*Pod){func(p *Pod) { p.Pod.Spec.Containers = p.Pod.Spec.Containers[:1] }}, OnNode{}, statuscode.Outside, Well, "This pod is not captured", "", nil},
		{"labels unknown", []func(*Pod){func(p *Pod) {
			p.Namespace, p.Pod.Annotations, p.Pod.Spec.Containers = nil, nil, p.Pod.Spec.Containers[:1]
		}}, OnNode{}, statuscode.Unknown, Unsure, "It cannot be told whether this pod is captured", "its namespace is not known", []string{"kubectl get namespace shop", "On a node such a pod is refused"}},
		{"not running", []func(*Pod){func(p *Pod) {
			p.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
		}}, captured, statuscode.NotRunning, Well, "Container app of this pod does not run (ImagePullBackOff)", "no such image", []string{"Correct the image"}},
		{"crashing", []func(*Pod){func(p *Pod) {
			p.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		}}, captured, statuscode.NotRunning, Well, "Container app of this pod does not run (CrashLoopBackOff).", "", []string{"logs cart-5d-x --container app --previous"}},
		{"not made", []func(*Pod){func(p *Pod) {
			p.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "no such secret"}}}}
		}}, captured, statuscode.NotRunning, Well, "does not run (CreateContainerConfigError)", "no such secret", []string{"See why: kubectl --namespace shop describe pod"}},
		{"its check fails", []func(*Pod){func(p *Pod) {
			p.Pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "istio-validation", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		}}, captured, statuscode.Bypassing, Wrong, "container istio-validation, fails", "", []string{"logs cart-5d-x --container istio-validation", restart}},
		{"ending", []func(*Pod){func(p *Pod) { p.Pod.DeletionTimestamp = &metav1.Time{} }}, state(status.StateFailed, "not-called"), statuscode.Ending, Well, "being deleted", "", []string{"Nothing"}},
	} {
		seen[test.code] = true
		p := running(t, test.change...)
		p.OnNode = test.is
		n := p.Now()
		assert.Equal(t, test.code, n.Code, test.name)
		assert.Equal(t, test.health, n.Health, test.name)
		assert.Contains(t, n.Sentence, test.sentence, test.name)
		assert.Contains(t, strings.Join(n.Because, "\n"), test.because, test.name)
		if assert.Len(t, n.Do, len(test.do), "%s: %q", test.name, n.Do) {
			for i, want := range test.do {
				assert.Contains(t, n.Do[i], want, test.name)
			}
		}
		var out bytes.Buffer
		require.NoError(t, n.WriteWith(&out, p.Explained.Verdict))
		assert.True(t, strings.HasPrefix(out.String(), n.Sentence+"\n"), out.String())
		assert.NotContains(t, out.String(), "--namespace-file")
		assert.LessOrEqual(t, strings.Count(out.String(), `Ports="80a"`), 1, "one thing is said once")
	}
	for _, code := range status.Codes(status.KindNow) {
		assert.True(t, seen[code], "no pod is %s", code)
	}
}

// TestForgedLines: no text of a pod, its events, its agent or its rules makes a line or a column.
func TestForgedLines(t *testing.T) {
	for name, change := range map[string]func(*OnNode, *Pod){
		"told": nil, "not told": func(is *OnNode, _ *Pod) { is.Records = nil },
		"no state": func(is *OnNode, p *Pod) { is.State, p.Explained.Verdict.State = nil, status.StateCaptured },
		"live":     func(is *OnNode, _ *Pod) { is.LiveError, is.Unknown = "", "" },
		"no hint":  func(is *OnNode, _ *Pod) { is.Hint = "" },
		"not started": func(is *OnNode, p *Pod) {
			is.State, p.Pod.Status = nil, corev1.PodStatus{Phase: corev1.PodPending}
		},
	} {
		visibletest.Check(t, "on node: "+name, nil, func(w *visible.Printer, is OnNode) {
			p := Pod{Pod: &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}}
			if change != nil {
				change(&is, &p)
			}
			p.OnNode = is
			p.print(w)
		})
	}
	type both struct {
		Now Now
		V   explain.Verdict
	}
	for name, change := range map[string]func(*both){
		"trouble": nil, "captured": func(b *both) { b.Now.Code = statuscode.Captured }, "outside": func(b *both) { b.Now.Code = statuscode.Outside }, "refused": func(b *both) { b.V.State, b.V.Sentence = status.StateRefused, b.Now.Sentence+"!" },
	} {
		visibletest.Check(t, "now: "+name, change, func(w *visible.Printer, b both) { assert.NoError(t, b.Now.WriteWith(printed{w}, b.V)) })
	}
}

// printed is a writer of what is printed already.
type printed struct{ w *visible.Printer }

func (p printed) Write(b []byte) (int, error) {
	p.w.Text(string(b))
	return len(b), p.w.Err()
}
