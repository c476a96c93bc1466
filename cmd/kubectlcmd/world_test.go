package kubectlcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/repair/integration/kubetest"
)

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

// world is a cluster of its own: a real API server, whose nodes have simulated agents.
type world struct {
	*kubetest.Admin

	server     *kubetest.Server
	kubeconfig string

	mu     sync.Mutex
	agents map[string]func(path string) (any, error) // by the node's name
	now    int                                       // how many are asked at a time, and were at most
	most   int
	gate   func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := kubetest.Own(t, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}})
	w := &world{Admin: s.Admin(t), server: s, kubeconfig: s.Kubeconfig(t, kubetest.AdminToken), agents: map[string]func(string) (any, error){}}
	w.Do(t, http.MethodPost, "/api/v1/namespaces", object("Namespace", "meshcni-system"), nil)
	return w
}

func object(kind, name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}}
}

// node makes a node, and unless say is nil the pod of its agent.
func (w *world) node(t *testing.T, name string, say func(path string) (any, error)) {
	t.Helper()
	w.Do(t, http.MethodPost, "/api/v1/nodes", object("Node", name), nil)
	if say == nil {
		return
	}
	w.Create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "meshcni-system", Name: "meshcni-node-" + name, Labels: map[string]string{
			"app.kubernetes.io/name": "meshcni", "app.kubernetes.io/component": "node",
		}},
		Spec: corev1.PodSpec{NodeName: name, HostNetwork: true, Containers: []corev1.Container{{Name: "agent", Image: "i", ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(8000)}},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agents[name] = say
}

// get is that of [asker]: the simulated agent's answer.
func (w *world) get(ctx context.Context, a agent, path string, into any) error {
	w.mu.Lock()
	w.now++
	w.most = max(w.most, w.now)
	say, gate := w.agents[a.Node], w.gate
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.now--
		w.mu.Unlock()
	}()
	if gate != nil {
		gate()
	}
	if a.Port != 8000 {
		return fmt.Errorf("port %d is refused", a.Port)
	}
	answer, err := say(path)
	if err != nil {
		return err
	}
	if answer == nil { // it hangs
		<-ctx.Done()
		return ctx.Err()
	}
	text, err := json.Marshal(answer)
	return errors.Join(err, json.Unmarshal(text, into))
}

// run runs the program as a user with a token.
func (w *world) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := Program{Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return w }}
	code = p.Main(t.Context(), append([]string{"--kubeconfig", w.kubeconfig}, args...))
	return code, out.String(), errs.String()
}

// entry is the plugin's entry of an agent.
const entry = `{"type":"meshcni","dialect":"istio","backend":"nftables","log_level":"info","run_dir":"/var/run/meshcni","pod_namespace":"meshcni-system","add_deadline":"30s",
"kubernetes":{"kubeconfig":"/var/run/meshcni/kubeconfig","exclude_namespaces":["kube-system","quiet"],"cni_bin_dir":"/opt/cni/bin"}}`

// sound is what a sound node's agent says, with changes.
func sound(name string, change ...func(*agentapi.Node)) func(string) (any, error) {
	total := 3
	n := agentapi.Node{Node: name, Ready: true, Pods: []agentapi.State{{Namespace: "shop", Name: "cart", UID: "u1", Dialect: "istio", State: "captured", Reason: "recorded"}}, About: agentapi.About{
		Version: "v1.2.3", Dialects: []string{"istio"}, Backend: "nftables", PodsTotal: &total,
		Installed: agentapi.Installed{File: "/host/etc/cni/net.d/10-x.conflist", CNIVersion: "1.0.0", Plugins: []string{"bridge", "meshcni"}, Config: json.RawMessage(entry)},
	}}
	for _, c := range change {
		c(&n)
	}
	return func(path string) (any, error) {
		if path != agentapi.NodePath {
			return nil, fmt.Errorf("nobody asks for %s", path)
		}
		return n, nil
	}
}

func silent(string) (any, error) { return nil, errors.New("connection refused") }

// meshPod is a pod of an Istio mesh.
func (w *world) meshPod(t *testing.T, namespace, name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	_ = w.Try(http.MethodPost, "/api/v1/namespaces", object("Namespace", namespace), nil) // it may be there
	uid := int64(1337)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "app", Image: "i"}, {Name: "istio-proxy", Image: "i", Args: []string{"proxy", "sidecar"}, SecurityContext: &corev1.SecurityContext{RunAsUser: &uid}},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.5", PodIPs: []corev1.PodIP{{IP: "10.244.1.5"}}},
	}
	for _, c := range change {
		c(pod)
	}
	return w.Create(t, pod)
}

// watchPods calls each with every change of the pods that a label is on, until the test ends.
func (w *world) watchPods(t *testing.T, label string, each func(context.Context, kubernetes.Interface, watch.Event, *corev1.Pod)) {
	t.Helper()
	client := w.clientset(t)
	ctx, stop := context.WithCancel(context.Background())
	var kubelet sync.WaitGroup
	kubelet.Go(func() {
		for ctx.Err() == nil { // a server that has just started ends the first ones
			seen, err := client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{LabelSelector: label})
			if err != nil {
				continue
			}
			for e := range seen.ResultChan() {
				if pod, ok := e.Object.(*corev1.Pod); ok {
					each(ctx, client, e, pod)
				}
			}
		}
	})
	t.Cleanup(func() {
		stop()
		kubelet.Wait()
	})
}

// clientset is the administrator's.
func (w *world) clientset(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := w.server.Config(kubetest.AdminToken)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// grant gives a service account rights in all namespaces.
func grant(t *testing.T, w *world, name, user string, rights map[string][]string) {
	t.Helper()
	role := &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	for resource, verbs := range rights {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs})
	}
	w.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterroles", role, nil)
	w.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, nil)
	// The server learns of the role a little later.
	for resource, verbs := range rights {
		what, sub, _ := strings.Cut(resource, "/")
		for _, verb := range verbs {
			require.Eventually(t, func() bool {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: "any", Verb: verb, Resource: what, Subresource: sub,
				}}}
				w.Do(t, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review, review)
				return review.Status.Allowed
			}, time.Minute, 10*time.Millisecond, "%s may not %s %s", user, verb, resource)
		}
	}
}
