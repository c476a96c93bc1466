package kubectlcmd

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/diagnosis/live"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestPrintersKeepLines: no text in what a printer takes makes a line or a column, or turns a line around.
func TestPrintersKeepLines(t *testing.T) {
	visibletest.Check(t, "status", nil, func(w *visible.Printer, s clusterStatus) {
		assert.NoError(t, s.table(w))
	})
	visibletest.Check(t, "check", nil, func(w *visible.Printer, r report) { assert.NoError(t, r.print(w)) })
	visibletest.Check(t, "test", nil, func(w *visible.Printer, r trialReport) { assert.NoError(t, r.print(w)) })
}

// TestForgedLines: what a tenant, a node's agent and a pod's kernel say stays on its line in every command. In JSON it is exact.
func TestForgedLines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	evil := visibletest.Hostile
	answer := agentapi.Pod{}
	visibletest.Fill(&answer, evil)
	answer.State.State, answer.LiveError = status.StateDrifted, ""
	for i := range answer.Records {
		answer.Records[i].Selected, answer.Records[i].Rules = true, ruleset.Ruleset{}
	}
	for i := range answer.Live {
		answer.Live[i].Backend, answer.Live[i].Family, answer.Live[i].Counters = ruleset.BackendIptablesNFT, ruleset.IPv4, nil
	}
	node := func(n *agentapi.Node) {
		was := *n
		visibletest.Fill(n, evil)
		n.Node, n.Installed, n.Dialects, n.Ready, n.Pods = was.Node, was.Installed, was.Dialects, false, n.Pods[:1]
		n.Pods[0].State = status.StateDrifted
	}
	sane := kubectltest.Sound("a")
	base := kubectltest.Sound("a", node)
	forging := true
	w.Node(t, "a", func(path string) (any, error) {
		switch {
		case path == agentapi.NodePath && forging:
			return base(path)
		case path == agentapi.NodePath:
			return sane(path)
		}
		return answer, nil
	})
	w.Node(t, "b", func(string) (any, error) { return nil, &evilError{evil} })
	change := func(p *corev1.Pod) {
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = evil
		p.Annotations["traffic.sidecar.istio.io/includeOutboundIPRanges"] = evil
		p.Annotations["traffic.sidecar.istio.io/odd"] = evil
		p.Status.Reason, p.Status.Message = evil, evil
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: evil, Message: evil}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: state, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: evil, Message: evil}}}}
	}
	pods := []*corev1.Pod{
		w.MeshPod(t, "shop", "wrong", "a", change), w.MeshPod(t, "shop", "far", "b", change),
		w.MeshPod(t, "shop", "pending", "a", change, func(p *corev1.Pod) {
			p.Annotations = map[string]string{"sidecar.istio.io/status": "{}", "x/" + "y": evil}
			p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodPending, "", nil
		}),
		w.MeshPod(t, "shop", "waits", "a", change, func(p *corev1.Pod) {
			p.Annotations = map[string]string{"sidecar.istio.io/status": "{}"}
		}),
	}
	for i, pod := range pods {
		for j, reason := range []string{"FailedCreatePodSandBox", "FailedScheduling", evil} {
			w.Do(t, http.MethodPost, "/api/v1/namespaces/shop/events", &corev1.Event{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Name: string(rune('a'+i)) + string(rune('a'+j)), Namespace: "shop"},
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod.Name, UID: pod.UID}, Type: "Warning", Reason: reason, Message: evil,
			}, nil)
		}
	}
	for _, forging = range []bool{true, false} {
		for _, args := range [][]string{
			{"status"}, {"check"}, {"explain", "wrong"}, {"explain", "far"}, {"explain", "far", "--config", "none"}, {"explain", "pending"}, {"explain", "waits"}, {"explain", "waits", "--brief"},
			{"explain", "-l", "app"}, {"show", "waits"}, {"show", "far"}, {"rules", "wrong"}, {"trace", "waits"}, {"test", "--timeout", "1s"},
		} {
			_, out, errs := w.run(t, append([]string{"-n", "shop"}, args...)...)
			visibletest.Lines(t, args[0]+" "+args[len(args)-1], out)
			visibletest.Lines(t, args[0]+" "+args[len(args)-1]+": errors", errs)
			assert.NotEmpty(t, out+errs, args)
		}
	}
	// JSON has the text as it is, but for what no JSON can have.
	exact, err := json.Marshal(evil)
	require.NoError(t, err)
	var want string
	require.NoError(t, json.Unmarshal(exact, &want))
	_, out, _ := w.run(t, "-n", "shop", "show", "waits", "-o", "json")
	rules := kubectltest.Decode[[]ruleset.LiveRule](t, out)
	require.Greater(t, len(rules), 2, "and findings")
	assert.Equal(t, want, rules[0].Chain)
	_, out, _ = w.run(t, "-n", "shop", "explain", "waits", "-o", "json")
	is := kubectltest.Decode[struct{ OnNode live.OnNode }](t, out).OnNode
	require.Len(t, is.Events, 3)
	assert.Equal(t, want, is.Events[0].Message)
	assert.Equal(t, want, is.State.Detail)
}

type evilError struct{ text string }

func (e *evilError) Error() string { return e.text }
