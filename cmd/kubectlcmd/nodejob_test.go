package kubectlcmd

import (
	"context"
	"crypto/tls"
	"errors"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/nodeagent/agents"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// jobKubelet runs the pods of jobs, on all nodes of a world, as far as the API server can tell.
type jobKubelet struct {
	*world
	mu sync.Mutex
	// runs says what a pod writes, and how it is then; nil: it writes its arguments, and succeeds.
	runs func(*corev1.Pod) (log string, status corev1.PodStatus)
	made map[string]*corev1.Pod // by name
	seen map[string]bool
	logs map[string]string
}

func newJobKubelet(t *testing.T, w *world) *jobKubelet {
	t.Helper()
	k := &jobKubelet{world: w, made: map[string]*corev1.Pod{}, seen: map[string]bool{}, logs: map[string]string{}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(r http.ResponseWriter, q *http.Request) {
		k.mu.Lock()
		log, ok := k.logs[strings.Split(q.URL.Path, "/")[3]] // containerLogs/NAMESPACE/POD/CONTAINER
		k.mu.Unlock()
		if !ok {
			http.Error(r, "no such pod", http.StatusNotFound)
			return
		}
		_, _ = r.Write([]byte(log))
	}))
	cert, err := tls.LoadX509KeyPair(w.server.Certificate(t, "system:node:any", []string{"system:nodes"}, "127.0.0.1"))
	require.NoError(t, err)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	var nodes corev1.NodeList
	w.Do(t, http.MethodGet, "/api/v1/nodes", nil, &nodes)
	for i := range nodes.Items {
		n := &nodes.Items[i]
		n.APIVersion, n.Kind = "v1", "Node"
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port) //nolint:gosec // a port
		w.Do(t, http.MethodPut, "/api/v1/nodes/"+n.Name+"/status", n, nil)
	}
	w.watchPods(t, own.Key(jobLabel), func(ctx context.Context, client kubernetes.Interface, e watch.Event, pod *corev1.Pod) {
		switch {
		case e.Type == watch.Deleted:
		case pod.DeletionTimestamp != nil:
			now := int64(0)
			_ = client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		default:
			k.run(t, ctx, client, pod)
		}
	})
	return k
}

func (k *jobKubelet) run(t *testing.T, ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) {
	k.mu.Lock()
	if k.seen[pod.Name] {
		k.mu.Unlock()
		return // a watch that begins again tells of all
	}
	k.seen[pod.Name] = true
	k.made[pod.Name] = pod.DeepCopy()
	runs := k.runs
	k.mu.Unlock()
	log, status := strings.Join(pod.Spec.Containers[0].Args, " "), corev1.PodStatus{Phase: corev1.PodSucceeded}
	if runs != nil {
		log, status = runs(pod)
	}
	k.mu.Lock()
	k.logs[pod.Name] = log
	k.mu.Unlock()
	pod.Status = status
	if _, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
		t.Logf("status of %s: %v", pod.Name, err) // it may have been deleted
	}
}

// next makes pods run otherwise, and forgets those of before.
func (k *jobKubelet) next(runs func(*corev1.Pod) (string, corev1.PodStatus)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.runs = runs
	clear(k.made)
}

// one is the only pod that has been made since next.
func (k *jobKubelet) one(t *testing.T) *corev1.Pod {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	require.Len(t, k.made, 1)
	for _, pod := range k.made {
		return pod
	}
	return nil
}

// left are the pods of jobs that nobody has deleted.
func (k *jobKubelet) left(t *testing.T) (names []string) {
	t.Helper()
	var list corev1.PodList
	k.Do(t, http.MethodGet, "/api/v1/pods?labelSelector="+own.Key(jobLabel), nil, &list)
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// output is what several goroutines write.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// TestNodeJob: a command runs on a node, by a pod with the least that it needs, and whatever happens the pod is deleted and the cause told.
func TestNodeJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node(t, "a", sound("a"))
	w.node(t, "bare", nil)
	k := newJobKubelet(t, w)
	var said output
	c := &cluster{Program: Program{Identity: own, Stderr: &said, Dialects: builtin.All()}, client: w.clientset(t), agents: w, finder: agents.Finder{Client: w.clientset(t), Identity: own}}

	out, err := c.runJob(t.Context(), nodeJob{
		Node: "a", What: "to see", Args: []string{"look", "$(HOME)"},
		Mounts: []hostDir{{Path: "/etc/cni", At: "/host/etc/cni", Writable: true}, {Path: "/run/x"}},
	})
	require.NoError(t, err)
	assert.Equal(t, "look $$(HOME)", string(out))
	pod := k.one(t)
	assert.Equal(t, "making pod meshcni-system/"+pod.Name+" on node a to see\n", said.String())
	assert.Empty(t, k.left(t))
	assert.Equal(t, "i", pod.Spec.Containers[0].Image, "the agent's")
	for _, key := range []string{"sidecar.istio.io/inject", "linkerd.io/inject", "kuma.io/sidecar-injection", "consul.hashicorp.com/connect-inject"} {
		assert.Contains(t, []string{"false", "disabled"}, pod.Annotations[key], key)
	}
	assert.True(t, pod.Spec.HostNetwork, "a node whose network is broken starts it")
	assert.False(t, pod.Spec.HostPID)
	assert.False(t, *pod.Spec.AutomountServiceAccountToken)
	assert.Empty(t, pod.Spec.Containers[0].SecurityContext.Capabilities.Add)
	assert.Nil(t, pod.Spec.Containers[0].SecurityContext.AppArmorProfile)
	assert.Equal(t, int64(180), *pod.Spec.ActiveDeadlineSeconds)
	assert.Equal(t, []corev1.VolumeMount{{Name: "host-0", MountPath: "/host/etc/cni"}, {Name: "host-1", MountPath: "/run/x", ReadOnly: true}}, pod.Spec.Containers[0].VolumeMounts)
	for _, d := range c.Dialects {
		assert.False(t, d.Decide(pod, nil).Selected, d.Name)
	}

	k.next(nil)
	_, err = c.runJob(t.Context(), nodeJob{Node: "a", Enters: true, Image: "registry.example/other:1"})
	require.NoError(t, err)
	pod = k.one(t)
	assert.True(t, pod.Spec.HostPID)
	assert.Equal(t, entering, pod.Spec.Containers[0].SecurityContext.Capabilities.Add)
	assert.Equal(t, corev1.AppArmorProfileTypeUnconfined, pod.Spec.Containers[0].SecurityContext.AppArmorProfile.Type)
	assert.Equal(t, "registry.example/other:1", pod.Spec.Containers[0].Image)

	_, err = c.runJob(t.Context(), nodeJob{Node: "bare"})
	assert.EqualError(t, err, "a pod on node bare: no agent runs there whose image could be used: --image names one")
	_, err = c.runJob(t.Context(), nodeJob{Node: "bare", Image: "i"})
	assert.EqualError(t, err, "a pod on node bare: no agent runs there in whose namespace it could be: --agent-namespace names one")

	t.Run("failures", func(t *testing.T) { jobFailures(t, c, k) })
	t.Run("interrupts", func(t *testing.T) { jobInterrupts(t, c, k, &said) })
}

// jobFailures: why a pod has not done what it should is told.
func jobFailures(t *testing.T, c *cluster, k *jobKubelet) {
	container := func(s corev1.ContainerState) corev1.PodStatus {
		p := corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "job", State: s}}}
		if s.Terminated != nil {
			p.Phase = corev1.PodFailed
		}
		return p
	}
	for _, test := range []struct {
		status corev1.PodStatus
		log    string
		want   string
	}{
		{container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "no such\nfile"}}), "", ": it has failed; container job has ended with code 3: no such; file"},
		{container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}), "", ": it does not start; container job waits: ImagePullBackOff: no such image"},
		{corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "Node didn't have enough resource: pods"}, "", ": it has failed; Node didn't have enough resource: pods"},
		{corev1.PodStatus{Phase: corev1.PodSucceeded}, strings.Repeat("x", agentapi.MaxAnswer+1), ": its log is longer than 4 MiB"},
	} {
		k.next(func(*corev1.Pod) (string, corev1.PodStatus) { return test.log, test.status })
		out, err := c.runJob(t.Context(), nodeJob{Node: "a"})
		assert.ErrorContains(t, err, test.want)
		assert.Regexp(t, `^pod meshcni-system/meshcni-job-\w+ on node a: `, err.Error())
		assert.Nil(t, out)
		assert.Empty(t, k.left(t))
	}

	// One that hangs; its last event is told.
	k.next(func(pod *corev1.Pod) (string, corev1.PodStatus) {
		assert.NoError(t, k.Try(http.MethodPost, "/api/v1/namespaces/"+pod.Namespace+"/events", &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "e1"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: "hostPath type check failed: /x is not a directory",
		}, nil))
		return "", container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}})
	})
	_, err := c.runJob(t.Context(), nodeJob{Node: "a", Timeout: 15 * time.Second})
	assert.ErrorContains(t, err, ": it has not ended: not within 15s; ") // then what the last question failed with, if one was under way
	assert.ErrorContains(t, err, "; event FailedMount: hostPath type check failed: /x is not a directory")
	assert.Empty(t, k.left(t))

	// One that somebody else deletes.
	k.next(func(pod *corev1.Pod) (string, corev1.PodStatus) {
		k.Remove(t, pod.Namespace, pod.Name)
		return "", corev1.PodStatus{}
	})
	_, err = c.runJob(t.Context(), nodeJob{Node: "a"})
	assert.ErrorContains(t, err, ": somebody has deleted it")

	// The namespace's level forbids it.
	k.next(nil)
	k.Do(t, http.MethodPatch, "/api/v1/namespaces/meshcni-system", map[string]any{"metadata": map[string]any{"labels": map[string]any{"pod-security.kubernetes.io/enforce": "baseline"}}}, nil)
	require.Eventually(t, func() bool { // the server's admission learns of it a little later
		_, err = c.runJob(t.Context(), nodeJob{Node: "a", Enters: true})
		return err != nil
	}, netnstest.Patience, 10*time.Millisecond)
	assert.ErrorContains(t, err, `violates PodSecurity "baseline:latest"`)
	assert.ErrorContains(t, err, "hostPID=true")
	k.Do(t, http.MethodPatch, "/api/v1/namespaces/meshcni-system", map[string]any{"metadata": map[string]any{"labels": map[string]any{"pod-security.kubernetes.io/enforce": "privileged"}}}, nil)
	assert.Empty(t, k.left(t))
}

// jobInterrupts: after the first interrupt the pod is deleted; after the second one nothing is waited for, and what is left behind is said.
func jobInterrupts(t *testing.T, c *cluster, k *jobKubelet, said *output) {
	hang := func(then func()) {
		k.next(func(*corev1.Pod) (string, corev1.PodStatus) {
			then()
			return "", corev1.PodStatus{Phase: corev1.PodRunning}
		})
	}
	ctx, interrupt := context.WithCancelCause(t.Context())
	hang(func() { interrupt(errors.New("interrupted")) })
	_, err := c.runJob(ctx, nodeJob{Node: "a"})
	assert.Regexp(t, `^pod meshcni-system/meshcni-job-\w+ on node a: interrupted$`, err.Error())
	assert.Empty(t, k.left(t))

	ctx, interrupt = context.WithCancelCause(t.Context())
	again, giveUp := context.WithCancelCause(t.Context())
	ctx = cli.WithAgain(ctx, again)
	hang(func() {
		giveUp(errors.New("interrupted again"))
		interrupt(errors.New("interrupted"))
	})
	_, err = c.runJob(ctx, nodeJob{Node: "a"})
	pod := k.one(t)
	assert.ErrorContains(t, err, "pod meshcni-system/"+pod.Name+" on node a: interrupted") // while it is made, or later
	assert.EqualError(t, c.left, "left behind: pod meshcni-system/"+pod.Name+": interrupted again; "+
		"it ends by itself within 3m0s, and this deletes it: kubectl delete pod --namespace meshcni-system "+pod.Name)
	assert.Equal(t, []string{pod.Name}, k.left(t))
	k.Remove(t, pod.Namespace, pod.Name)

	// The answer is there even if nobody may delete the pod.
	config, err := k.server.Config(kubetest.AdminToken)
	require.NoError(t, err)
	config.Impersonate.UserName = "alice"
	alice, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	grant(t, k.world, "jobs", "alice", map[string][]string{"pods": {"list", "get", "create"}, "pods/log": {"get"}, "daemonsets.apps": {"list"}})
	k.next(nil)
	c = &cluster{Program: Program{Identity: own, Stderr: said}, client: alice, finder: agents.Finder{Client: alice, Identity: own}}
	out, err := c.runJob(t.Context(), nodeJob{Node: "a", Args: []string{"look"}})
	require.NoError(t, err)
	assert.ErrorContains(t, c.left, `User "alice" cannot delete resource "pods"`)
	assert.Equal(t, "look", string(out))
}
