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
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kubetest"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/nodeagent/agents"
	"github.com/meshcni/meshcni/status"
)

// own is the identity of the programs in these tests.
var own = meshcni.DefaultIdentity()

func TestMain(m *testing.M) {
	if os.Getenv(fleetNodes) != "" {
		if err := serveFleet(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

// world is a cluster of its own: a real API server, whose nodes have simulated agents.
type world struct {
	*kubetest.Admin

	server     *kubetest.Server
	kubeconfig string
	set        *appsv1.DaemonSet // the agents', once a node has one
	dialects   []dialect.Dialect // nil: this module's, as facts
	facts      mesh.List

	mu     sync.Mutex
	agents map[string]func(path string) (any, error) // by the node's name
	now    int                                       // how many are asked at a time, and were at most
	most   int
	gate   func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := kubetest.Lend(t)
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
	if w.set == nil {
		w.set = w.install(t, "meshcni-system")
	}
	w.Create(t, podOf(w.set, name))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agents[name] = say
}

var agentLabels = map[string]string{"app.kubernetes.io/name": "meshcni", "app.kubernetes.io/component": "node"}

// agentSet is a DaemonSet of pods that look as the agents' do.
func agentSet(namespace, name string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: agentLabels},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: agentLabels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: agentLabels},
			Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
				Name: "agent", Image: "i", Args: []string{"run", "--health-address=127.0.0.1:8000"},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"meshcni-node", "ready", "--start-socket=/s"}}}},
			}}},
		}},
	}
}

// install makes the agents' DaemonSet in a namespace, and the ClusterRoleBinding that names it.
func (w *world) install(t *testing.T, namespace string) *appsv1.DaemonSet {
	t.Helper()
	w.bind(t, namespace)
	return w.daemonSet(t, agentSet(namespace, "meshcni-node"))
}

func (w *world) daemonSet(t *testing.T, ds *appsv1.DaemonSet) *appsv1.DaemonSet {
	t.Helper()
	made := &appsv1.DaemonSet{}
	w.Do(t, http.MethodPost, "/apis/apps/v1/namespaces/"+ds.Namespace+"/daemonsets", ds, made)
	return made
}

// bind makes the installation's ClusterRoleBinding.
func (w *world) bind(t *testing.T, namespaces ...string) {
	t.Helper()
	b := &rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: own.PluginAccount},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: own.PluginAccount},
	}
	for _, namespace := range namespaces {
		b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "meshcni-plugin"})
	}
	w.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", b, nil)
}

// podOf is the pod of a DaemonSet on a node, as its controller makes it.
func podOf(ds *appsv1.DaemonSet, node string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ds.Namespace, Name: ds.Name + "-" + node, Labels: ds.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
		},
		Spec: *ds.Spec.Template.Spec.DeepCopy(), Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	pod.Spec.NodeName = node
	return pod
}

// get is that of [asker]: the simulated agent's answer.
func (w *world) get(ctx context.Context, a agents.Agent, path string, into any) error {
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
	p := Program{Dialects: w.dialects, Facts: w.facts, Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return w }}
	code = p.Main(t.Context(), append([]string{"--kubeconfig", w.kubeconfig}, args...))
	return code, out.String(), errs.String()
}

// entry is the plugin's entry of an agent.
const entry = `{"type":"meshcni","dialect":"istio","backend":"nftables","log_level":"info","run_dir":"/var/run/meshcni","pod_namespace":"meshcni-system","add_deadline":"30s",
"kubernetes":{"kubeconfig":"/var/run/meshcni/kubeconfig","exclude_namespaces":["kube-system","quiet"],"cni_bin_dir":"/opt/cni/bin"}}`

// sound is what a sound node's agent says, with changes.
func sound(name string, change ...func(*agentapi.Node)) func(string) (any, error) {
	total := 3
	n := agentapi.Node{Node: name, Ready: true, Pods: []status.Pod{{ID: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, Dialect: "istio", State: "captured", Reason: "recorded"}}, About: agentapi.About{
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

// grant gives a user rights in all namespaces, by resource, such as pods/log or daemonsets.apps.
func grant(t *testing.T, w *world, name, user string, rights map[string][]string) {
	t.Helper()
	role := &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	for resource, verbs := range rights {
		resource, group, _ := strings.Cut(resource, ".")
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
	}
	w.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterroles", role, nil)
	w.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, nil)
	// The server learns of the role a little later.
	for resource, verbs := range rights {
		what, group, _ := strings.Cut(resource, ".")
		what, sub, _ := strings.Cut(what, "/")
		for _, verb := range verbs {
			require.Eventually(t, func() bool {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: "any", Verb: verb, Group: group, Resource: what, Subresource: sub,
				}}}
				w.Do(t, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review, review)
				return review.Status.Allowed
			}, netnstest.Patience, 10*time.Millisecond, "%s may not %s %s", user, verb, resource)
		}
	}
}
