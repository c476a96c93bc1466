package kubectlcmd

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// TestStatus: each node has a row, whatever its agent says or does not; the code says whether all is well.
func TestStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	code, _, _ := w.run(t, "status")
	assert.Equal(t, exitUnknown, code, "there is no node")
	w.Do(t, http.MethodPost, "/api/v1/nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "win", Labels: map[string]string{corev1.LabelOSStable: "windows"}},
	}, nil)
	code, _, _ = w.run(t, "status")
	assert.Equal(t, exitUnknown, code, "none that could have an agent")

	w.Node(t, "a", kubectltest.Sound("a"))
	code, out, errOut := w.run(t, "status")
	assert.Equal(t, exitOK, code, errOut)
	assert.Equal(t, `NODE  STATE  VERSION  DIALECTS  BACKEND   CAPTURED  OUTSIDE  WAITING  DRIFTED  FAILED  UNKNOWN
a     ready  v1.2.3   istio     nftables  1         2        0        0        0       0
`, out)

	w.Node(t, "b", kubectltest.Silent)
	code, out, _ = w.run(t, "status")
	assert.Equal(t, exitUnknown, code)
	assert.Contains(t, out, "b        unknown  -        -         -         -         -        -        -        -       -\n")
	assert.Contains(t, out, "b is unknown: ask agent meshcni-system/meshcni-node-b: connection refused\n")

	w.Node(t, "c", nil)
	code, out, _ = w.run(t, "status")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, out, "c        no-agent  ")

	w.Node(t, "d", kubectltest.Sound("d", func(n *agentapi.Node) {
		n.Ready, n.News = false, []status.News{news.New(status.KindReadiness, "no-network", "no file"), news.New(status.KindNotice, news.OtherMesh, "linkerd-cni")}
		n.Pods = []status.Pod{
			{ID: status.ID{Namespace: "shop", Name: "late"}, State: "failed", Reason: "not-called", Detail: "its network was set up without the plugin"},
			{ID: status.ID{Namespace: "shop", Name: "odd"}, State: "drifted", Reason: "rules"}, {ID: status.ID{Namespace: "shop", Name: "new"}, State: "unknown", Reason: "no-trace"},
			{ID: status.ID{Namespace: "shop", Name: "out"}, State: "outside", Reason: "not-enabled"},
		}
		n.PodsTotal, n.PodsStarting = nil, 1
	}))
	code, out, _ = w.run(t, "status")
	assert.Equal(t, exitWrong, code)
	assert.Equal(t, []string{
		"NODE     STATE      VERSION  DIALECTS  BACKEND   CAPTURED  OUTSIDE  WAITING  DRIFTED  FAILED  UNKNOWN",
		"a        ready      v1.2.3   istio     nftables  1         2        0        0        0       0",
		"b        unknown    -        -         -         -         -        -        -        -       -",
		"c        no-agent   -        -         -         -         -        -        -        -       -",
		"d        not-ready  v1.2.3   istio     nftables  0         1        1        1        1       1",
		"4 nodes  1 ready                                 1         3        1        1        1       1",
		"b is unknown: ask agent meshcni-system/meshcni-node-b: connection refused",
		"d is not-ready: no-network: no file",
		"d: warning: other-mesh: linkerd-cni",
		"pod shop/late is failed: not-called: its network was set up without the plugin",
		"pod shop/odd is drifted: rules: no detail",
		"next: 1 node has no agent, and new pods of the mesh there bypass it: look at the DaemonSet's tolerations and nodeSelector (kubectl get daemonset --all-namespaces --selector app.kubernetes.io/name=meshcni,app.kubernetes.io/component=node)",
		"next: a node is not ready: kubectl meshcni check says more, and docs/troubleshooting.md#the-node-is-not-ready has the code before the reason",
		"next: an agent does not answer: look at its pod (kubectl get pods --all-namespaces --output wide --selector app.kubernetes.io/name=meshcni,app.kubernetes.io/component=node); asking it takes the right to create pods/portforward in its namespace",
		"next: kubectl meshcni explain -n shop late says what is wrong with that pod, and what to do",
		"next: 1 pod has no network yet: if that is still so in a minute, kubectl get pods --all-namespaces --field-selector status.phase=Pending names those that do not start, and kubectl meshcni explain says why",
	}, kubectltest.Lines(out))
	code, text, _ := w.run(t, "status", "-o", "json")
	assert.Equal(t, exitWrong, code)
	s := kubectltest.Decode[clusterStatus](t, text)
	assert.Equal(t, 2, s.WrongPods)
	assert.Equal(t, counts{"captured": 1, "outside": 3, "waiting": 1, "starting": 1, "drifted": 1, "failed": 1, "unknown": 1}, s.Total)
	code, text, _ = w.run(t, "status", "-o", "yaml")
	assert.Equal(t, exitWrong, code)
	var same clusterStatus
	require.NoError(t, yaml.Unmarshal([]byte(text), &same))
	assert.Equal(t, s, same)

	answers := w.Answer("a", func(string) (any, error) { return nil, nil }) // it hangs
	_, out, _ = w.run(t, "status", "--agent-timeout", "1ns")
	w.Answer("a", answers)
	assert.Contains(t, out, "a is unknown: ask agent meshcni-system/meshcni-node-a: no answer within 1ns\n")
	code, _, errOut = w.run(t, "status", "extra")
	assert.Equal(t, exitUsage, code, errOut)
	code, out, _ = w.run(t, "status", "--agent-selector", "app=other")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, out, "next: no node has an agent")
	code, _, errOut = w.run(t, "--token", "nobody", "status")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errOut, "list nodes: ")

	t.Run("five hundred nodes", func(t *testing.T) { fiveHundred(t, w) })
}

// TestCount: what is not known of a pod is not that it is outside. No agent of this version says refused, which is explain's.
func TestCount(t *testing.T) {
	var n agentapi.Node
	for _, c := range append([]status.State{"of a newer agent"}, status.States()...) {
		n.Pods = append(n.Pods, status.Pod{State: c})
	}
	assert.Equal(t, counts{"captured": 1, "outside": 1, "waiting": 1, "starting": 0, "drifted": 1, "failed": 1, "unknown": 3}, count(n))
	total := 10
	n.PodsTotal = &total
	assert.Equal(t, 3, count(n)["outside"], "those that the agent does not list too")
}

// fiveHundred: agents are asked many at a time, and not all at once, and one that does not answer is a row.
func fiveHundred(t *testing.T, w *world) {
	const nodes = 500
	kubetest.Parallel(nodes, func(i int) {
		name := fmt.Sprintf("n%03d", i)
		w.Node(t, name, kubectltest.Sound(name, func(n *agentapi.Node) {
			for p := range 100 {
				n.Pods = append(n.Pods, status.Pod{ID: status.ID{Namespace: "shop", Name: fmt.Sprintf("p%d-%d", i, p)}, State: "failed", Reason: "not-called"})
			}
		}))
	})
	w.Answer("n250", kubectltest.Silent)
	var full sync.WaitGroup // the first ones answer once as many as may be are asked
	full.Add(askAtOnce)
	var first sync.Mutex
	asked := 0
	w.Gate = func() {
		first.Lock()
		asked++
		mine := asked
		first.Unlock()
		if mine <= askAtOnce {
			full.Done()
			full.Wait()
		}
	}
	code, out, errOut := w.run(t, "status", "-o", "json")
	require.Equal(t, exitWrong, code, errOut)
	s := kubectltest.Decode[clusterStatus](t, out)
	assert.Len(t, s.Nodes, 4+nodes, "beside those that were there")
	assert.Equal(t, 1+nodes-1, s.Ready)
	assert.Equal(t, 2+(nodes-1)*100, s.WrongPods)
	assert.Len(t, s.Wrong, maxWrong, "what is kept does not grow")
	assert.Equal(t, stateUnknown, s.Nodes[4+250].State)
	assert.Equal(t, []string{"ask agent meshcni-system/meshcni-node-n250: connection refused"}, s.Nodes[4+250].Why)
	assert.Equal(t, askAtOnce, w.Most)
}

// TestStatusOfARefusedPod: a pod that ADD refuses is named with the reason, and is not well.
func TestStatusOfARefusedPod(t *testing.T) {
	t.Parallel()
	s := clusterStatus{Total: newCounts()}
	s.add(agents.Agent{Node: "a"}, agentapi.Node{Ready: true, Pods: []status.Pod{
		{ID: status.ID{Namespace: "shop", Name: "bad"}, State: status.StateWaiting, Reason: "pod-refused", Detail: "annotation a: no number"},
	}}, nil)
	require.ErrorIs(t, s.exit(), cli.Exit(exitWrong))
	var out bytes.Buffer
	require.NoError(t, s.table(visible.To(&out)))
	assert.Contains(t, out.String(), "pod shop/bad is waiting: pod-refused: annotation a: no number\n")
}
