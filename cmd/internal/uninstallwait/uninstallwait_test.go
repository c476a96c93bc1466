package uninstallwait

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// fake is a cluster of the objects that it holds.
type fake struct {
	set  *appsv1.DaemonSet
	pods []corev1.Pod
	err  error
	next func(*fake) // before each answer
}

func (f *fake) DaemonSet(context.Context) (*appsv1.DaemonSet, error) {
	if f.next != nil {
		f.next(f)
	}
	return f.set, f.err
}

func (f *fake) Pods(context.Context) ([]corev1.Pod, error) { return f.pods, f.err }

func set(nodes int32) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "work", UID: "set", Generation: 1}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: nodes, ObservedGeneration: 1}}
}

// worker is the set's pod on a node.
func worker(node string, statuses ...corev1.ContainerStatus) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "work-" + node, OwnerReferences: []metav1.OwnerReference{{UID: "set"}}},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{ContainerStatuses: statuses},
	}
}

// unscheduled is one that is for a node, and on none.
func unscheduled(node, why string) corev1.Pod {
	p := worker("")
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}},
	}}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: why}}
	return p
}

func ended(code int32, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}
}

var (
	running  = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	backsOff = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
)

func isAgent(p *corev1.Pod) bool { return strings.HasPrefix(p.Name, "agent-") }

func agent(node string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-x"}, Spec: corev1.PodSpec{NodeName: node}}
}

func TestCall(t *testing.T) {
	done := worker("a", corev1.ContainerStatus{State: ended(0, "")})
	for name, c := range map[string]struct {
		set  *appsv1.DaemonSet
		pods []corev1.Pod
		says map[string]string
	}{
		"no node":                  {set(0), nil, nil},
		"done":                     {set(1), []corev1.Pod{done}, nil},
		"done, and again":          {set(1), []corev1.Pod{worker("a", corev1.ContainerStatus{State: running, LastTerminationState: ended(0, ""), RestartCount: 1})}, nil},
		"done, and waits":          {set(1), []corev1.Pod{worker("a", corev1.ContainerStatus{State: backsOff, LastTerminationState: ended(0, ""), RestartCount: 3})}, nil},
		"others' pods":             {set(1), []corev1.Pod{done, {ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.PodSpec{NodeName: "b"}}}, nil},
		"works":                    {set(1), []corev1.Pod{worker("a", corev1.ContainerStatus{State: running})}, map[string]string{"a": "not done yet"}},
		"failed":                   {set(2), []corev1.Pod{worker("b", corev1.ContainerStatus{State: backsOff, LastTerminationState: ended(1, "no\n such file")}), done}, map[string]string{"b": "exit code 1: no such file"}},
		"failed after it was done": {set(1), []corev1.Pod{worker("a", corev1.ContainerStatus{State: ended(1, "why"), LastTerminationState: ended(0, "")})}, map[string]string{"a": "exit code 1: why"}},
		"no image": {set(1), []corev1.Pod{worker("a", corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}})},
			map[string]string{"a": "ErrImagePull: no such host"}},
		"node is down":       {set(2), []corev1.Pod{done, worker("b")}, map[string]string{"b": "the kubelet has not begun: is the node up?"}},
		"node is full":       {set(1), []corev1.Pod{unscheduled("c", "Too many pods")}, map[string]string{"c": "Too many pods"}},
		"no pod":             {set(3), []corev1.Pod{done}, map[string]string{"2 more nodes": "no pod could be made for them: kubectl describe daemonset work says why"}},
		"agent is there":     {set(1), []corev1.Pod{agent("a"), worker("a", corev1.ContainerStatus{State: running})}, map[string]string{"a": "not done yet"}},
		"agent is elsewhere": {set(1), []corev1.Pod{agent("z"), done}, map[string]string{"z": "pod agent-x is still there"}},
	} {
		nodes, pending, err := (&Waiter{Cluster: &fake{set: c.set, pods: c.pods}, Before: isAgent}).look(t.Context())
		require.NoError(t, err, name)
		assert.EqualValues(t, c.set.Status.DesiredNumberScheduled, nodes, name)
		got := map[string]string{}
		for _, a := range pending {
			got[a.Node] = a.Why
		}
		if c.says == nil {
			c.says = map[string]string{}
		}
		assert.Equal(t, c.says, got, name)
	}
}

// TestWorkBesideAnAgent: what was done while an agent was still there may have been undone by it, and has to be done again; a run
// that had begun and not ended counts.
func TestWorkBesideAnAgent(t *testing.T) {
	f := &fake{set: set(2), pods: []corev1.Pod{
		agent("a"), agent("b"), worker("a", corev1.ContainerStatus{State: ended(0, "")}), worker("b", corev1.ContainerStatus{State: running}),
	}}
	r := &Waiter{Cluster: f, Before: isAgent}
	_, pending, err := r.look(t.Context())
	require.NoError(t, err)
	assert.Len(t, pending, 2)
	f.pods = []corev1.Pod{worker("a", corev1.ContainerStatus{State: ended(0, "")}), worker("b", corev1.ContainerStatus{State: ended(0, "")})}
	_, pending, err = r.look(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []Pending{{"a", "not done yet"}}, pending)
	f.pods[0] = worker("a", corev1.ContainerStatus{State: ended(0, ""), RestartCount: 1})
	_, pending, err = r.look(t.Context())
	require.NoError(t, err)
	assert.Empty(t, pending)
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		f := &fake{set: set(1), err: errors.New("refused"), next: func(f *fake) {
			switch asked++; asked {
			case 2:
				f.err = nil
			case 3:
				f.pods = []corev1.Pod{worker("a", corev1.ContainerStatus{State: ended(0, "")})}
			}
		}}
		nodes, pending := (&Waiter{Cluster: f}).Wait(t.Context(), time.Second)
		assert.Equal(t, 1, nodes)
		assert.Empty(t, pending)
		assert.Equal(t, 3, asked)

		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		_, pending = (&Waiter{Cluster: &fake{err: errors.New("refused")}}).Wait(ctx, time.Second)
		assert.Equal(t, []Pending{{"no node is known", "read DaemonSet: refused"}}, pending)
		unseen := set(0)
		unseen.Generation = 2
		_, pending = (&Waiter{Cluster: &fake{set: unseen}}).Wait(ctx, time.Second)
		require.Len(t, pending, 1, "the time was over before")
		assert.Contains(t, pending[0].Why, "does the controller manager run?")
	})
}

func TestAPI(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		case strings.HasSuffix(r.URL.Path, "/pods"):
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]}`)
		default:
			fmt.Fprint(w, `{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"name":"work"},"status":{"desiredNumberScheduled":7}}`)
		}
	}))
	defer s.Close()
	api, err := Connect(&rest.Config{Host: s.URL}, "ns", "work")
	require.NoError(t, err)
	set, err := api.DaemonSet(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 7, set.Status.DesiredNumberScheduled)
	pods, err := api.Pods(t.Context())
	require.NoError(t, err)
	assert.Len(t, pods, 1)
	require.NoError(t, api.DeletePod(t.Context(), "test"), "it need not be there")
	assert.Equal(t, []string{"GET /apis/apps/v1/namespaces/ns/daemonsets/work", "GET /api/v1/namespaces/ns/pods", "DELETE /api/v1/namespaces/ns/pods/test"}, asked)
}
