package kubectlcmd

import (
	"context"
	"errors"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

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
	w.Node(t, "a", kubectltest.Sound("a"))
	w.Node(t, "bare", nil)
	k := kubectltest.NewKubelet(t, w.World)
	var said output
	c := &cluster{Program: Program{Identity: own, Stderr: &said, Dialects: builtin.All()}, client: w.Clientset(t), agents: w, finder: agents.Finder{Client: w.Clientset(t), Identity: own}}

	out, err := c.runJob(t.Context(), kubectl.Job{
		Node: "a", What: "to see", Args: []string{"look", "$(HOME)"},
		Mounts: []kubectl.HostDir{{Path: "/etc/cni", At: "/host/etc/cni", Writable: true}, {Path: "/run/x"}},
	})
	require.NoError(t, err)
	assert.Equal(t, "look $$(HOME)", string(out))
	pod := k.One(t)
	assert.Equal(t, "making pod meshcni-system/"+pod.Name+" on node a to see\n", said.String())
	assert.Empty(t, k.Left(t))
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

	k.Next(nil)
	_, err = c.runJob(t.Context(), kubectl.Job{Node: "a", Enters: true, Image: "registry.example/other:1"})
	require.NoError(t, err)
	pod = k.One(t)
	assert.True(t, pod.Spec.HostPID)
	assert.Equal(t, entering, pod.Spec.Containers[0].SecurityContext.Capabilities.Add)
	assert.Equal(t, corev1.AppArmorProfileTypeUnconfined, pod.Spec.Containers[0].SecurityContext.AppArmorProfile.Type)
	assert.Equal(t, "registry.example/other:1", pod.Spec.Containers[0].Image)

	_, err = c.runJob(t.Context(), kubectl.Job{Node: "bare"})
	assert.EqualError(t, err, "a pod on node bare: no agent runs there whose image could be used: --image names one")
	_, err = c.runJob(t.Context(), kubectl.Job{Node: "bare", Image: "i"})
	assert.EqualError(t, err, "a pod on node bare: no agent runs there in whose namespace it could be: --agent-namespace names one")

	t.Run("failures", func(t *testing.T) { jobFailures(t, c, k) })
	t.Run("interrupts", func(t *testing.T) { jobInterrupts(t, c, k, &said) })
}

// jobFailures: why a pod has not done what it should is told.
func jobFailures(t *testing.T, c *cluster, k *kubectltest.Kubelet) {
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
		k.Next(func(*corev1.Pod) (string, corev1.PodStatus) { return test.log, test.status })
		out, err := c.runJob(t.Context(), kubectl.Job{Node: "a"})
		assert.ErrorContains(t, err, test.want)
		assert.Regexp(t, `^pod meshcni-system/meshcni-job-\w+ on node a: `, err.Error())
		assert.Nil(t, out)
		assert.Empty(t, k.Left(t))
	}

	// One that hangs; its last event is told.
	k.Next(func(pod *corev1.Pod) (string, corev1.PodStatus) {
		assert.NoError(t, k.Try(http.MethodPost, "/api/v1/namespaces/"+pod.Namespace+"/events", &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "e1"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: "hostPath type check failed: /x is not a directory",
		}, nil))
		return "", container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}})
	})
	_, err := c.runJob(t.Context(), kubectl.Job{Node: "a", Timeout: 15 * time.Second})
	assert.ErrorContains(t, err, ": it has not ended: not within 15s; ") // then what the last question failed with, if one was under way
	assert.ErrorContains(t, err, "; event FailedMount: hostPath type check failed: /x is not a directory")
	assert.Empty(t, k.Left(t))

	// One that somebody else deletes.
	k.Next(func(pod *corev1.Pod) (string, corev1.PodStatus) {
		k.Remove(t, pod.Namespace, pod.Name)
		return "", corev1.PodStatus{}
	})
	_, err = c.runJob(t.Context(), kubectl.Job{Node: "a"})
	assert.ErrorContains(t, err, ": somebody has deleted it")

	// The namespace's level forbids it.
	k.Next(nil)
	k.Do(t, http.MethodPatch, "/api/v1/namespaces/meshcni-system", map[string]any{"metadata": map[string]any{"labels": map[string]any{"pod-security.kubernetes.io/enforce": "baseline"}}}, nil)
	require.Eventually(t, func() bool { // the server's admission learns of it a little later
		_, err = c.runJob(t.Context(), kubectl.Job{Node: "a", Enters: true})
		return err != nil
	}, netnstest.Patience, 10*time.Millisecond)
	assert.ErrorContains(t, err, `violates PodSecurity "baseline:latest"`)
	assert.ErrorContains(t, err, "hostPID=true")
	k.Do(t, http.MethodPatch, "/api/v1/namespaces/meshcni-system", map[string]any{"metadata": map[string]any{"labels": map[string]any{"pod-security.kubernetes.io/enforce": "privileged"}}}, nil)
	assert.Empty(t, k.Left(t))
}

// jobInterrupts: after the first interrupt the pod is deleted; after the second one nothing is waited for, and what is left behind is said.
func jobInterrupts(t *testing.T, c *cluster, k *kubectltest.Kubelet, said *output) {
	hang := func(then func()) {
		k.Next(func(*corev1.Pod) (string, corev1.PodStatus) {
			then()
			return "", corev1.PodStatus{Phase: corev1.PodRunning}
		})
	}
	ctx, interrupt := context.WithCancelCause(t.Context())
	hang(func() { interrupt(errors.New("interrupted")) })
	_, err := c.runJob(ctx, kubectl.Job{Node: "a"})
	assert.Regexp(t, `^pod meshcni-system/meshcni-job-\w+ on node a: interrupted$`, err.Error())
	assert.Empty(t, k.Left(t))

	ctx, interrupt = context.WithCancelCause(t.Context())
	again, giveUp := context.WithCancelCause(t.Context())
	ctx = cli.WithAgain(ctx, again)
	hang(func() {
		giveUp(errors.New("interrupted again"))
		interrupt(errors.New("interrupted"))
	})
	_, err = c.runJob(ctx, kubectl.Job{Node: "a"})
	pod := k.One(t)
	assert.ErrorContains(t, err, "pod meshcni-system/"+pod.Name+" on node a: interrupted") // while it is made, or later
	assert.EqualError(t, c.left, "left behind: pod meshcni-system/"+pod.Name+": interrupted again; "+
		"it ends by itself within 3m0s, and this deletes it: kubectl delete pod --namespace meshcni-system "+pod.Name)
	assert.Equal(t, []string{pod.Name}, k.Left(t))
	k.Remove(t, pod.Namespace, pod.Name)

	// The answer is there even if nobody may delete the pod.
	config, err := k.Server.Config(kubetest.AdminToken)
	require.NoError(t, err)
	config.Impersonate.UserName = "alice"
	alice, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	k.Grant(t, "jobs", "alice", map[string][]string{"pods": {"list", "get", "create"}, "pods/log": {"get"}, "daemonsets.apps": {"list"}})
	k.Next(nil)
	c = &cluster{Program: Program{Identity: own, Stderr: said}, client: alice, finder: agents.Finder{Client: alice, Identity: own}}
	out, err := c.runJob(t.Context(), kubectl.Job{Node: "a", Args: []string{"look"}})
	require.NoError(t, err)
	assert.ErrorContains(t, c.left, `User "alice" cannot delete resource "pods"`)
	assert.Equal(t, "look", string(out))
}
