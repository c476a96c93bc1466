package kubectltest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// Kubelet runs the pods of jobs, on all nodes of a world, as far as the API server can tell.
type Kubelet struct {
	*World
	mu sync.Mutex
	// runs says what a pod writes, and how it is then; nil: it writes its arguments, and succeeds.
	Runs func(*corev1.Pod) (log string, status corev1.PodStatus)
	Made map[string]*corev1.Pod // by name
	seen map[string]bool
	logs map[string]string
}

func NewKubelet(t *testing.T, w *World) *Kubelet {
	t.Helper()
	k := &Kubelet{World: w, Made: map[string]*corev1.Pod{}, seen: map[string]bool{}, logs: map[string]string{}}
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
	cert, err := tls.LoadX509KeyPair(w.Server.Certificate(t, "system:node:any", []string{"system:nodes"}, "127.0.0.1"))
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
	w.WatchPods(t, Own.Key(kubectl.JobLabel), func(ctx context.Context, client kubernetes.Interface, e watch.Event, pod *corev1.Pod) {
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

func (k *Kubelet) run(t *testing.T, ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) {
	k.mu.Lock()
	if k.seen[pod.Name] {
		k.mu.Unlock()
		return // a watch that begins again tells of all
	}
	k.seen[pod.Name] = true
	k.Made[pod.Name] = pod.DeepCopy()
	runs := k.Runs
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

// Next makes pods run otherwise, and forgets those of before.
func (k *Kubelet) Next(runs func(*corev1.Pod) (string, corev1.PodStatus)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Runs = runs
	clear(k.Made)
}

// One is the only pod that has been made since Next.
func (k *Kubelet) One(t *testing.T) *corev1.Pod {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	require.Len(t, k.Made, 1)
	for _, pod := range k.Made {
		return pod
	}
	return nil
}

// Left are the pods of jobs that nobody has deleted.
func (k *Kubelet) Left(t *testing.T) (names []string) {
	t.Helper()
	var list corev1.PodList
	k.Do(t, http.MethodGet, "/api/v1/pods?labelSelector="+Own.Key(kubectl.JobLabel), nil, &list)
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// UIDs are the pods that a job is to look at.
func UIDs(pod *corev1.Pod) (uids []string) {
	for _, arg := range pod.Spec.Containers[0].Args {
		if uid, ok := strings.CutPrefix(arg, "--uid="); ok {
			uids = append(uids, uid)
		}
	}
	return uids
}

// Looks makes the pods of jobs say what is known of pods; of others, that they do not run.
func Looks(t *testing.T, known map[string]agentapi.Pod) func(*corev1.Pod) (string, corev1.PodStatus) {
	return func(pod *corev1.Pod) (string, corev1.PodStatus) {
		var out bytes.Buffer
		for _, uid := range UIDs(pod) {
			p, ok := known[uid]
			if !ok {
				p.LiveError = "no process of the pod runs"
			}
			assert.NoError(t, json.NewEncoder(&out).Encode(agentapi.Looked{UID: uid, Pod: p}))
		}
		return out.String(), corev1.PodStatus{Phase: corev1.PodSucceeded}
	}
}
