// Package kubectltest is a cluster for tests of the kubectl plugin and of its commands: a real API server, with simulated agents and kubelets.
package kubectltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// Own is the identity of the programs in these tests.
var Own = meshcni.DefaultIdentity()

// World is a cluster of its own: a real API server, whose nodes have simulated agents.
type World struct {
	*kubetest.Admin

	Server     *kubetest.Server
	Kubeconfig string
	Set        *appsv1.DaemonSet // the agents', once a node has one

	mu     sync.Mutex
	agents map[string]func(path string) (any, error) // by the node's name
	now    int                                       // how many are asked at a time, and were at most
	Most   int
	Gate   func()
}

// New is a world without nodes.
func New(t *testing.T) *World {
	t.Helper()
	s := kubetest.Lend(t)
	w := &World{Admin: s.Admin(t), Server: s, Kubeconfig: s.Kubeconfig(t, kubetest.AdminToken), agents: map[string]func(string) (any, error){}}
	w.Do(t, http.MethodPost, "/api/v1/namespaces", Object("Namespace", "meshcni-system"), nil)
	return w
}

// Object is one with no more than a name.
func Object(kind, name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}}
}

// Node makes a node, and unless say is nil the pod of its agent.
func (w *World) Node(t *testing.T, name string, say func(path string) (any, error)) {
	t.Helper()
	w.Do(t, http.MethodPost, "/api/v1/nodes", Object("Node", name), nil)
	if say == nil {
		return
	}
	if w.Set == nil {
		w.Set = w.Install(t, "meshcni-system")
	}
	w.Create(t, PodOf(w.Set, name))
	w.Answer(name, say)
}

// Answer has a node's agent say something else, and returns what it said before.
func (w *World) Answer(node string, say func(path string) (any, error)) (before func(path string) (any, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.agents[node] = w.agents[node], say
	return before
}

// AgentLabels are those of the agents' pods.
var AgentLabels = map[string]string{"app.kubernetes.io/name": "meshcni", "app.kubernetes.io/component": "node"}

// AgentSet is a DaemonSet of pods that look as the agents' do.
func AgentSet(namespace, name string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: AgentLabels},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: AgentLabels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: AgentLabels},
			Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
				Name: "agent", Image: "i", Args: []string{"run", "--health-address=127.0.0.1:8000"},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"meshcni-node", "ready", "--start-socket=/s"}}}},
			}}},
		}},
	}
}

// Install makes the agents' DaemonSet in a namespace, and the ClusterRoleBinding that names it.
func (w *World) Install(t *testing.T, namespace string) *appsv1.DaemonSet {
	t.Helper()
	w.Bind(t, namespace)
	return w.DaemonSet(t, AgentSet(namespace, "meshcni-node"))
}

// DaemonSet makes one.
func (w *World) DaemonSet(t *testing.T, ds *appsv1.DaemonSet) *appsv1.DaemonSet {
	t.Helper()
	made := &appsv1.DaemonSet{}
	w.Do(t, http.MethodPost, "/apis/apps/v1/namespaces/"+ds.Namespace+"/daemonsets", ds, made)
	return made
}

// Bind makes the installation's ClusterRoleBinding.
func (w *World) Bind(t *testing.T, namespaces ...string) {
	t.Helper()
	b := &rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: Own.PluginAccount},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: Own.PluginAccount},
	}
	for _, namespace := range namespaces {
		b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "meshcni-plugin"})
	}
	w.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", b, nil)
}

// PodOf is the pod of a DaemonSet on a node, as its controller makes it.
func PodOf(ds *appsv1.DaemonSet, node string) *corev1.Pod {
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

// Get is the simulated agent's answer.
func (w *World) Get(ctx context.Context, a agents.Agent, path string, into any) error {
	w.mu.Lock()
	w.now++
	w.Most = max(w.Most, w.now)
	say, gate := w.agents[a.Node], w.Gate
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

// Entry is the plugin's entry of an agent.
const Entry = `{"type":"meshcni","dialect":"istio","backend":"nftables","log_level":"info","run_dir":"/var/run/meshcni","pod_namespace":"meshcni-system","add_deadline":"30s",
"kubernetes":{"kubeconfig":"/var/run/meshcni/kubeconfig","exclude_namespaces":["kube-system","quiet"],"cni_bin_dir":"/opt/cni/bin"}}`

// Sound is what a sound node's agent says, with changes.
func Sound(name string, change ...func(*agentapi.Node)) func(string) (any, error) {
	total := 3
	n := agentapi.Node{Node: name, Ready: true, Pods: []status.Pod{{ID: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, Dialect: "istio", State: "captured", Reason: "recorded"}}, About: agentapi.About{
		Version: "v1.2.3", Dialects: []string{"istio"}, Backend: "nftables", PodsTotal: &total,
		Installed: agentapi.Installed{File: "/host/etc/cni/net.d/10-x.conflist", CNIVersion: "1.0.0", Plugins: []string{"bridge", "meshcni"}, Config: json.RawMessage(Entry)},
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

// Silent is an agent that does not answer.
func Silent(string) (any, error) { return nil, errors.New("connection refused") }

// MeshPod is a pod of an Istio mesh.
func (w *World) MeshPod(t *testing.T, namespace, name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	_ = w.Try(http.MethodPost, "/api/v1/namespaces", Object("Namespace", namespace), nil) // it may be there
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

// WatchPods calls each with every change of the pods that a label is on, until the test ends.
func (w *World) WatchPods(t *testing.T, label string, each func(context.Context, kubernetes.Interface, watch.Event, *corev1.Pod)) {
	t.Helper()
	client := w.Clientset(t)
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

// Clientset is the administrator's.
func (w *World) Clientset(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := w.Server.Config(kubetest.AdminToken)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// Lines are those of an output.
func Lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

// Decode reads an output of JSON.
func Decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// Grant gives a user rights in all namespaces, by resource, such as pods/log or daemonsets.apps.
func (w *World) Grant(t *testing.T, name, user string, rights map[string][]string) {
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
