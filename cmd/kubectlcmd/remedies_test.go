package kubectlcmd

import (
	"bytes"
	"errors"
	"fmt"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/explain"
	facts "github.com/meshcni/meshcni/mesh/builtin"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// running is a pod of a Deployment in an Istio mesh, which runs.
func running(change ...func(*subject)) *subject {
	controller := true
	s := &subject{
		pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "cart-5d-x", UID: "u", Labels: map[string]string{"pod-template-hash": "5d"}, Annotations: map[string]string{"sidecar.istio.io/status": "{}"},
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "cart-5d", Controller: &controller}},
			},
			Spec:   corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.5"},
		},
		namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, selector: "component=node",
		nodeView: nodeView{agent: agent{Namespace: "meshcni-system", Name: "meshcni-node-x"}, node: agentapi.Node{Node: "a", Ready: true, About: agentapi.About{Installed: agentapi.Installed{File: "/etc/cni/net.d/10-x.conflist", Config: []byte(entry)}}}},
	}
	for _, c := range change {
		c(s)
	}
	s.deciding = &deciding{text: []byte(entry)}
	if s.namespace == nil {
		s.deciding.text = []byte(strings.Replace(entry, `"dialect":"istio"`, `"dialect":["ambient","istio"]`, 1))
	}
	if err := s.deciding.parse(own, builtin.All()); err != nil {
		panic(err)
	}
	subject := dialect.Subject{Pod: s.pod, Namespace: s.namespace, Addrs: explain.Addrs(s.pod)}
	x, err := explain.Pod(s.deciding.meshes, explain.Input{Subject: subject, Facts: facts.Facts()})
	if err != nil {
		panic(err)
	}
	s.explained = x
	return s
}

func pending(s *subject) { s.pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }

func notReady(s *subject) {
	s.node.Ready, s.node.NotReady = false, []string{"no-kubeconfig: it is not there"}
}

// TestTroubles: of all that is wrong with a pod the cause is told, with what helps, and nothing else first.
func TestTroubles(t *testing.T) {
	const restart = "kubectl --namespace shop rollout restart deployment/cart"
	state := func(c status.State, reason status.Code) onNode {
		return onNode{Pod: agentapi.Pod{State: &status.Pod{State: c, Reason: reason}}}
	}
	sandbox := func(message string) onNode {
		return onNode{Events: []event{{Reason: "FailedCreatePodSandBox", Message: "an older one"}, {Reason: "FailedCreatePodSandBox", Message: message}, {Reason: "Scheduled"}}}
	}
	wrong := func(s *subject) {
		s.pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "80a"
	}
	seen := map[status.Code]bool{}
	captured := state(status.StateCaptured, "recorded")
	lost := captured
	lost.Lost, lost.Live = gone, []ruleset.LiveRule{{Ours: true}}
	flushed := lost
	flushed.Live = []ruleset.LiveRule{{Text: "other"}}
	unread := captured
	unread.LiveError, unread.hint = "operation not permitted", true
	for _, test := range []struct {
		name     string
		change   []func(*subject)
		is       onNode
		code     status.Code
		exit     int
		sentence string
		because  string
		do       []string // in order, a part of each
	}{
		{"captured", nil, captured, status.CodeCaptured, ExitOK, "This pod is captured (the plugin wrote its rules when it started): its connections go through Istio (sidecar)", "", nil},
		{"captured, by a mesh of its own", nil, state(status.StateCaptured, "acme"), status.CodeCaptured, ExitOK, "(the agent of its node says so: acme)", "", nil},
		{"captured by the record alone", nil, unread, status.CodeCaptured, ExitOK, "(the plugin wrote its rules when it started)", "Whether its rules are still there was not looked at, since the agent may not enter pods; --enter reads them", nil},
		{"started before the plugin", nil, state(status.StateFailed, "not-called"), status.CodeBypassing, ExitWrong, "it started before the plugin was on its node", "", []string{restart}},
		{"the same, node not ready", []func(*subject){notReady}, state(status.StateFailed, "not-called"), status.CodeBypassing, ExitWrong, "bypasses the mesh", "no-kubeconfig: it is not there", []string{"First make the node's agent ready", restart}},
		{"passed over", nil, state(status.StateFailed, "passed-over"), status.CodeBypassing, ExitWrong, "would not do so now", "", []string{restart}},
		{"drifted", nil, state(status.StateDrifted, "rules"), status.CodeRulesLost, ExitWrong, "it has other rules than it should have", "", []string{restart, "find out who"}},
		{"lost", nil, lost, status.CodeRulesLost, ExitWrong, "has lost rules", "ipv4 nat/OUTPUT:1 missing: -j X", []string{restart, "kubectl meshcni show"}},
		{"lost all", nil, flushed, status.CodeBypassing, ExitWrong, "it had rules, and none of them are there any more", "", []string{restart, "kubectl meshcni show"}},
		{"waits for the proxy", nil, state(status.StateWaiting, "no-proxy"), status.CodeWaiting, ExitWrong, "not captured yet: no proxy of its node is connected", "", []string{"ztunnel"}},
		{"cannot tell", nil, state(status.StateUnknown, "no-trace"), status.CodeUnknown, ExitUnknown, "It is not known whether this pod is captured", "", []string{"To be sure, restart it: " + restart, "--cni-cache-dir"}},
		{"no rules at all", nil, onNode{selected: true}, status.CodeBypassing, ExitWrong, "none of its rules are there", "", []string{restart}},
		{"nobody can look", nil, onNode{selected: true, Pod: agentapi.Pod{LiveError: "operation not permitted"}}, status.CodeUnknown, ExitUnknown, "nothing says whether the pod has its rules", "", []string{restart}},
		{"nobody can look, ADD did", nil, onNode{selected: true, Pod: agentapi.Pod{LiveError: "operation not permitted", Records: []attachment.Record{{Selected: true}}}}, status.CodeCaptured, ExitOK, "the plugin wrote its rules", "Whether its rules are still there was not looked at", nil},
		{"its rules are there", nil, onNode{selected: true, Pod: agentapi.Pod{Live: []ruleset.LiveRule{{Ours: true}}}}, status.CodeCaptured, ExitOK, "This pod is captured (its rules are there): its", "", nil},
		{"refused", []func(*subject){wrong, pending}, sandbox(`plugin type="meshcni" failed (add): x`), status.CodeRefused, ExitWrong, "This pod is refused, and does not start", `excludeOutboundPorts="80a"`, []string{"Give the annotation traffic.sidecar.istio.io/excludeOutboundPorts a value that is allowed", "Correct it where"}},
		{"would be refused", []func(*subject){wrong}, captured, status.CodeWouldRefuse, ExitWrong, "would not start again", `excludeOutboundPorts="80a"`, []string{"Give the annotation", "Correct it where"}},
		{"the plugin fails", []func(*subject){pending, notReady}, sandbox(`rpc error: plugin type="meshcni" failed (add): read kubeconfig: no such file`), status.CodeNetworkFailed, ExitWrong, "the plugin refuses to", "read kubeconfig: no such file", []string{"First make the node's agent ready", "Mend what the message names"}},
		{"another plugin fails", []func(*subject){pending}, sandbox(`plugin type="calico" failed (add): x`), status.CodeNetworkFailed, ExitWrong, "not this plugin's", "calico", []string{"another CNI plugin"}},
		{"starting", []func(*subject){pending}, onNode{}, status.CodeStarting, ExitUnknown, "has no network yet", "", []string{"Ask again"}},
		{"starting, the agent knows why not", []func(*subject){pending}, state(status.StateWaiting, "add-failed"), status.CodeNetworkFailed, ExitWrong, "does not start: the plugin could not set it up", "", []string{"Mend what is named"}},
		{"refused by what decided then", []func(*subject){pending}, state(status.StateWaiting, "pod-refused"), status.CodeRefused, ExitWrong, "does not start: its settings are refused", "", []string{"Correct the settings"}},
		{"unscheduled", []func(*subject){pending, func(s *subject) { s.pod.Spec.NodeName = "" }}, onNode{Events: []event{{Reason: "FailedScheduling", Message: "0/1 nodes: untolerated taint {meshcni.io/agent-not-ready: }"}}}, status.CodeUnscheduled, ExitUnknown, "on no node yet", "0/1 nodes", []string{"kubectl meshcni status"}},
		{"no agent", []func(*subject){func(s *subject) { s.asking = fmt.Errorf("node a: %w", errNoAgent) }}, onNode{}, status.CodeNoAgent, ExitWrong, "Node a, where this pod is, has no agent", "", []string{"kubectl get daemonset", restart}},
		{"no agent anywhere", []func(*subject){func(s *subject) { s.asking = fmt.Errorf("node a: %w", errNoAgents) }}, onNode{}, status.CodeNoAgent, ExitWrong, "meshcni does not seem to be installed", "", []string{"kubectl get daemonset", "install the chart", restart}},
		{"silent", []func(*subject){func(s *subject) { s.asking = errors.New("connection refused") }}, onNode{}, status.CodeAgentSilent, ExitUnknown, "does not answer", "connection refused", []string{"describe pod meshcni-node-x", "can-i create pods/portforward"}},
		{"not chained", []func(*subject){notReady, func(s *subject) { s.node.Installed = agentapi.Installed{Error: "x"} }}, onNode{}, status.CodeNotInstalled, ExitWrong, "has the plugin's entry", "no-kubeconfig", []string{"logs meshcni-node-x", restart}},
		{"excluded, and injected", []func(*subject){func(s *subject) { s.pod.Namespace = "quiet" }}, onNode{}, status.CodeExcludedInjected, ExitWrong, "bypasses the mesh", "excludes its namespace, quiet", []string{"Nothing, if", "take quiet out", "rollout restart", "Or keep the pod out"}},
		{"another mesh's", []func(*subject){func(s *subject) { s.pod.Spec.Containers[1].Name = "linkerd-proxy" }}, onNode{}, status.CodeOtherDialect, ExitWrong, "it is of the mesh Linkerd", "", []string{"Add linkerd", "rollout restart"}},
		{"outside", []func(*subject){func(s *subject) { s.pod.Spec.Containers = s.pod.Spec.Containers[:1] }}, onNode{}, status.CodeOutside, ExitOK, "This pod is not captured", "", nil},
		{"labels unknown", []func(*subject){func(s *subject) {
			s.namespace, s.pod.Annotations, s.pod.Spec.Containers = nil, nil, s.pod.Spec.Containers[:1]
		}}, onNode{}, status.CodeUnknown, ExitUnknown, "It cannot be told whether this pod is captured", "its namespace is not known", []string{"kubectl get namespace shop", "On a node such a pod is refused"}},
		{"not running", []func(*subject){func(s *subject) {
			s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
		}}, captured, status.CodeNotRunning, ExitOK, "Container app of this pod does not run (ImagePullBackOff)", "no such image", []string{"Correct the image"}},
		{"crashing", []func(*subject){func(s *subject) {
			s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		}}, captured, status.CodeNotRunning, ExitOK, "Container app of this pod does not run (CrashLoopBackOff).", "", []string{"logs cart-5d-x --container app --previous"}},
		{"not made", []func(*subject){func(s *subject) {
			s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "no such secret"}}}}
		}}, captured, status.CodeNotRunning, ExitOK, "does not run (CreateContainerConfigError)", "no such secret", []string{"See why: kubectl --namespace shop describe pod"}},
		{"its check fails", []func(*subject){func(s *subject) {
			s.pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "istio-validation", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		}}, captured, status.CodeBypassing, ExitWrong, "container istio-validation, fails", "", []string{"logs cart-5d-x --container istio-validation", restart}},
		{"ending", []func(*subject){func(s *subject) { s.pod.DeletionTimestamp = &metav1.Time{} }}, state(status.StateFailed, "not-called"), status.CodeEnding, ExitOK, "being deleted", "", []string{"Nothing"}},
	} {
		seen[test.code] = true
		s := running(test.change...)
		p := s.present(test.is)
		assert.Equal(t, test.code, p.Code, test.name)
		assert.Equal(t, test.exit, p.exit, test.name)
		assert.Contains(t, p.Sentence, test.sentence, test.name)
		assert.Contains(t, strings.Join(p.Because, "\n"), test.because, test.name)
		if assert.Len(t, p.Do, len(test.do), "%s: %q", test.name, p.Do) {
			for i, want := range test.do {
				assert.Contains(t, p.Do[i], want, test.name)
			}
		}
		var out bytes.Buffer
		require.NoError(t, p.print(&out, s.explained.Verdict))
		assert.True(t, strings.HasPrefix(out.String(), p.Sentence+"\n"), out.String())
		assert.NotContains(t, out.String(), "--namespace-file")
		assert.LessOrEqual(t, strings.Count(out.String(), `Ports="80a"`), 1, "one thing is said once")
	}
	for _, code := range status.Codes(status.KindNow) {
		assert.True(t, seen[code], "no pod is %s", code)
	}
}
