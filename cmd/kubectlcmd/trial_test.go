package kubectlcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/proof"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// trialFixture is a world whose pods of the test run, as far as the API server can tell.
type trialFixture struct {
	*world
	// started is called with each new pod, and says what becomes of it; nil: it has ended, and its containers have proved what they were to.
	started func(*corev1.Pod) corev1.PodStatus
	// past are trials, as "pod what", of connections that no proxy captures.
	past map[string]bool

	mu   sync.Mutex
	pods map[string]corev1.Pod
}

func newTrialFixture(t *testing.T, w *world) *trialFixture {
	t.Helper()
	y := &trialFixture{world: w, pods: map[string]corev1.Pod{}, past: map[string]bool{}}
	w.WatchPods(t, own.Key(kubectl.TestLabel), func(ctx context.Context, client kubernetes.Interface, e watch.Event, pod *corev1.Pod) {
		if e.Type == watch.Added {
			y.admit(t, ctx, client, pod)
		}
	})
	return y
}

// admit does what a kubelet does.
func (y *trialFixture) admit(t *testing.T, ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) {
	y.mu.Lock()
	if y.pods[pod.Name].UID == pod.UID {
		y.mu.Unlock()
		return // seen before
	}
	y.pods[pod.Name] = *pod
	started := y.started
	y.mu.Unlock()
	pod.Status = y.proved(t, pod)
	if started != nil {
		pod.Status = started(pod)
	}
	if _, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
		t.Logf("status of %s: %v", pod.Name, err) // it may have been deleted
	}
}

// proved is the status of a pod whose containers have ended: an application proves outbound, a proxy the rest.
func (y *trialFixture) proved(t *testing.T, pod *corev1.Pod) (s corev1.PodStatus) {
	status := func(containers []corev1.Container) (all []corev1.ContainerStatus) {
		for _, c := range containers {
			what := []string{"outbound"}
			if c.Name != "app" {
				what = []string{"inbound", "inbound from outside"}
			}
			var a proof.Answer
			for _, what := range what {
				for _, family := range []string{"IPv4", "IPv6"} {
					y.mu.Lock()
					past := y.past[pod.Name+" "+what]
					y.mu.Unlock()
					a.Trials = append(a.Trials, proof.Trial{Family: family, What: what, Works: !past, Detail: "where"})
				}
			}
			text, err := json.Marshal(a)
			assert.NoError(t, err)
			all = append(all, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(text)}}})
		}
		return all
	}
	return corev1.PodStatus{Phase: corev1.PodSucceeded, InitContainerStatuses: status(pod.Spec.InitContainers), ContainerStatuses: status(pod.Spec.Containers)}
}

func (y *trialFixture) test(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	p := Program{Dialects: y.dialects, Facts: y.facts, Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return y.world }}
	code = p.Main(ctx, append([]string{"--kubeconfig", y.Kubeconfig, "test"}, args...))
	return code, out.String(), errs.String()
}

// left are the namespaces of tests that nobody has deleted, and all others of tests.
func (y *trialFixture) left(t *testing.T) (left, all []string) {
	t.Helper()
	var list corev1.NamespaceList
	y.Do(t, http.MethodGet, "/api/v1/namespaces?labelSelector="+own.Key(kubectl.TestLabel), nil, &list)
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
		if list.Items[i].DeletionTimestamp == nil {
			left = append(left, list.Items[i].Name)
		}
	}
	return left, all
}

func (y *trialFixture) set(change func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	change()
}

// TestTrial: pods of every mesh that a node's plugin knows are made, as the strictest pod security standard wants them; what their
// connections come to is told; and nothing is left, whatever happens.
func TestTrial(t *testing.T) {
	t.Parallel()
	y := newTrialFixture(t, newWorld(t))
	y.Node(t, "a", kubectltest.Sound("a", func(n *agentapi.Node) {
		n.Dialects = []string{"istio", "linkerd", "kuma", "consul"}
	}))
	code, out, errs := y.test(t.Context())
	require.Equal(t, exitOK, code, out+errs)
	rows := kubectltest.Lines(out)
	assert.Equal(t, "NODE  MESH     FAMILY  CONNECTION            RESULT", rows[0])
	assert.Equal(t, "a     istio    IPv4    outbound              ok", rows[1])
	assert.Equal(t, "a     consul   IPv6    inbound from outside  ok", rows[24])
	assert.Equal(t, "1 of 1 nodes were tried: 24 ok, 0 failed, 0 unknown", rows[25])
	assert.Len(t, rows, 26)
	left, all := y.left(t)
	assert.Empty(t, left)
	assert.Len(t, all, 1, "the pods had a namespace of their own")
	assert.Equal(t, "i", y.pods["istio-0"].Spec.Containers[0].Image, "the agent's")

	t.Run("past the proxy", func(t *testing.T) {
		y.set(func() { y.past["kuma-0 inbound"] = true })
		defer y.set(func() { clear(y.past) })
		code, out, _ := y.test(t.Context(), "-o", "json", "--image", "registry.example/other:1")
		assert.Equal(t, exitWrong, code)
		r := kubectltest.Decode[trialReport](t, out)
		for _, row := range r.Rows {
			assert.Equal(t, row.Dialect == "kuma" && row.What == "inbound", row.Result == resultFailed, row)
			assert.Equal(t, row.Result == resultFailed, row.Detail == "where", row)
		}
		assert.Equal(t, "registry.example/other:1", y.pods["kuma-0"].Spec.Containers[0].Image)
	})
	t.Run("pods that do not start", func(t *testing.T) { noStart(t, y) })
	t.Run("interrupted", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		y.set(func() {
			y.started = func(pod *corev1.Pod) corev1.PodStatus {
				if strings.HasPrefix(pod.Name, "istio") {
					stop(errors.New("interrupted"))
				}
				return pod.Status
			}
		})
		defer y.set(func() { y.started = nil })
		code, out, errs := y.test(ctx)
		assert.Equal(t, exitWrong, code, out)
		assert.Contains(t, errs, "kubectl-meshcni: interrupted\n")
		assert.NotContains(t, errs, "left behind")
		left, _ := y.left(t)
		assert.Empty(t, left)

		// Whoever does not wait for the deletion hears what is left.
		ctx, stop = context.WithCancelCause(t.Context())
		again, giveUp := context.WithCancelCause(t.Context())
		y.set(func() {
			y.started = func(pod *corev1.Pod) corev1.PodStatus {
				if strings.HasPrefix(pod.Name, "istio") {
					giveUp(errors.New("interrupted again"))
					stop(errors.New("interrupted"))
				}
				return pod.Status
			}
		})
		code, out, errs = y.test(cli.WithAgain(ctx, again))
		assert.Equal(t, exitWrong, code, out)
		left, _ = y.left(t)
		require.Len(t, left, 1)
		assert.Contains(t, errs, "kubectl-meshcni: left behind: namespace "+left[0]+": interrupted again; this deletes it: kubectl delete namespace "+left[0]+"\n")
		y.Do(t, http.MethodDelete, "/api/v1/namespaces/"+left[0], nil, nil)
	})
	t.Run("others' namespaces", func(t *testing.T) {
		assert.NoError(t, y.Try(http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", "theirs"), nil))
		theirs := y.MeshPod(t, "theirs", "cart", "a")
		code, out, errs := y.test(t.Context(), "-n", "theirs")
		assert.Equal(t, exitOK, code, out+errs)
		var list corev1.PodList
		y.Do(t, http.MethodGet, "/api/v1/namespaces/theirs/pods", nil, &list)
		require.Len(t, list.Items, 1, "only those of the test are deleted")
		assert.Equal(t, theirs.UID, list.Items[0].UID)
		code, _, errs = y.test(t.Context(), "-n", "missing")
		assert.Equal(t, exitWrong, code)
		assert.Contains(t, errs, `namespaces "missing" not found`)
	})
	t.Run("no right to delete", func(t *testing.T) {
		y.Grant(t, "tester", "alice", map[string][]string{"nodes": {"list"}, "pods": {"list", "get", "create"}, "namespaces": {"create"}, "events": {"list"}, "daemonsets.apps": {"list"}})
		code, _, errs := y.test(t.Context(), "--as", "alice")
		assert.Equal(t, exitWrong, code)
		left, _ := y.left(t)
		require.Len(t, left, 1)
		assert.Contains(t, errs, "kubectl-meshcni: left behind: namespace "+left[0]+": ")
		assert.Contains(t, errs, "forbidden")
		y.Do(t, http.MethodDelete, "/api/v1/namespaces/"+left[0], nil, nil)
	})
	t.Run("kept", func(t *testing.T) {
		code, _, errs := y.test(t.Context(), "--keep")
		assert.Equal(t, exitOK, code, errs)
		left, _ := y.left(t)
		require.Len(t, left, 1)
		assert.Contains(t, errs, "kubectl get pods -n "+left[0])
		y.Do(t, http.MethodDelete, "/api/v1/namespaces/"+left[0], nil, nil)
	})
	t.Run("other nodes", func(t *testing.T) { otherNodes(t, y) })
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{{"--timeout", "0s"}, {"--nodes", "-1"}, {"extra"}, {"-o", "yaml"}} {
			code, _, errs := y.test(t.Context(), args...)
			assert.Equal(t, exitUsage, code, errs)
		}
	})
}

// noStart: what the cluster says of a pod that does not start is told.
func noStart(t *testing.T, y *trialFixture) {
	y.set(func() {
		y.started = func(pod *corev1.Pod) corev1.PodStatus {
			if !strings.HasPrefix(pod.Name, "linkerd") {
				return pod.Status
			}
			assert.NoError(t, y.Try(http.MethodPost, "/api/v1/namespaces/"+pod.Namespace+"/events", &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: "e1"},
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
				Type:           corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: "plugin type=\"meshcni\" failed (add): no such backend",
			}, nil))
			return corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Message: "unknown command \"prove\""},
			}}}}
		}
	})
	defer y.set(func() { y.started = nil })
	code, out, errs := y.test(t.Context())
	assert.Equal(t, exitWrong, code, errs)
	assert.Regexp(t, `a linkerd pod starts: failed: pod meshcni-test-\w+/linkerd-0: it has failed; container app has ended with code 2: unknown command "prove"; `+
		`event FailedCreatePodSandBox: plugin type="meshcni" failed \(add\): no such backend\n`, out)
	assert.Contains(t, out, ": 18 ok, 1 failed, 0 unknown\n", "other meshes' pods are tried")
	left, _ := y.left(t)
	assert.Empty(t, left)

	// One whose containers wait until the time is up.
	over, up := context.WithCancelCause(t.Context())
	y.set(func() {
		y.started = func(*corev1.Pod) corev1.PodStatus {
			up(errors.New("not within an hour"))
			return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
			}}}}
		}
	})
	c := &cluster{Program: Program{Identity: own}, client: nil, agents: y}
	config, err := y.Server.Config(kubetest.AdminToken)
	require.NoError(t, err)
	c.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	run := newTrial(c, trialOptions{namespace: y.Namespace(t)})
	_, err = run.end(over, run.run.meshed("waits", "a", image{name: "i"}, fakeSidecar{}))
	assert.ErrorContains(t, err, "/waits: not within an hour")
	assert.Empty(t, run.clean(t.Context()))
}

// otherNodes: what cannot be tried is said.
func otherNodes(t *testing.T, y *trialFixture) {
	y.Node(t, "b", kubectltest.Silent)
	y.Node(t, "c", nil)
	y.Node(t, "d", kubectltest.Sound("d", func(n *agentapi.Node) {
		n.Dialects, n.News = []string{"ambient", "acme"}, []status.News{news.New(status.KindFinding, codeNoProxy, "new pods of the mesh do not start: none is connected")}
	}))
	code, out, errs := y.test(t.Context(), "--node", "b,d", "--node", "b")
	assert.Equal(t, exitUnknown, code, errs)
	assert.Contains(t, out, "b agent: unknown: ask agent meshcni-system/meshcni-node-b: connection refused\n")
	assert.Contains(t, out, "d ambient pod starts: unknown: the node's proxy is not connected")
	assert.Contains(t, out, "d acme pod starts: unknown: the test has no pod for this mesh\n")
	assert.Contains(t, out, "2 of 4 nodes were tried: 0 ok, 0 failed, 3 unknown\n")
	code, out, errs = y.test(t.Context(), "--nodes", "3")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errs, "testing 3 of 4 nodes; --nodes 0 tries all\n")
	assert.Contains(t, out, "c agent: failed: no agent runs there\n")
	code, _, errs = y.test(t.Context(), "--node", "x")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, errs, "--node x: there is no such node\n")

	y.Answer("d", kubectltest.Sound("d", func(n *agentapi.Node) { n.Dialects = []string{"ambient"} }))
	code, out, errs = y.test(t.Context(), "--node", "d")
	assert.Equal(t, exitOK, code, out+errs)
	assert.Contains(t, out, ": 2 ok, 0 failed, 0 unknown\n", "the proxy is the node's: there is an application alone")
	assert.Empty(t, y.pods["ambient-0"].Spec.InitContainers)

	// What a container could not try, and why.
	says := func(message string) {
		y.set(func() {
			y.started = func(pod *corev1.Pod) corev1.PodStatus {
				pod.Status.ContainerStatuses[0].State.Terminated.Message = message
				return pod.Status
			}
		})
	}
	defer y.set(func() { y.started = nil })
	for message, want := range map[string]string{
		`{"trials":[]}`: "d ambient connections: unknown: its containers could try none\n",
		`{"trials":[],"error":"the pod is none of ambient: x"}`: "d ambient connections: unknown: container app: the pod is none of ambient: x\n",
		"": "d ambient connections: unknown: container app: what it says is no answer: ",
	} {
		says(message)
		code, out, _ = y.test(t.Context(), "--node", "d")
		assert.Equal(t, exitUnknown, code, out)
		assert.Contains(t, out, want)
	}
}
