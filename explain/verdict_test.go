package explain_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/playground"
	"github.com/meshcni/meshcni/internal/program/remedy"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// verdict asks the named meshes about a pod. An empty namespace is not known.
func verdict(t *testing.T, pod, namespace string, names ...string) explain.Verdict {
	t.Helper()
	return ask(t, known(t, names...), pod, namespace).Verdict
}

func known(t *testing.T, names ...string) dialect.Set {
	t.Helper()
	set, err := dialect.Configure(builtin.All(), netconf.Config{Dialects: names})
	require.NoError(t, err)
	return set
}

func ask(t *testing.T, set dialect.Set, pod, namespace string) explain.Explanation {
	t.Helper()
	m, err := explain.ParseManifest([]byte(pod))
	require.NoError(t, err)
	var n *corev1.Namespace
	if namespace != "" {
		n, err = explain.ParseNamespace([]byte(namespace))
		require.NoError(t, err)
	}
	subject := dialect.Subject{Pod: m.Pod, Namespace: n, Addrs: explain.Addrs(m.Pod)}
	x, err := explain.Pod(set, explain.Input{Subject: subject, Facts: facts.All(), Template: m.Template})
	require.NoError(t, err)
	return x
}

// TestVerdict: each of the page's first examples is summed up, and each way past the mesh comes with how to close it.
func TestVerdict(t *testing.T) {
	want := map[string]status.State{
		"A pod that no mesh knows of": status.StateOutside, "A pod in an Istio mesh": status.StateCaptured, "Settings that are wrong": status.StateRefused,
		"IPv6 gets past the mesh": status.StateCaptured, "On the host's network": status.StateOutside, "An init container sets the rules": status.StateOutside,
	}
	seen := 0
	for _, e := range playground.Examples() {
		state, ok := want[e.Title]
		if !ok {
			continue
		}
		seen++
		v := verdict(t, e.Pod, e.Namespace, builtin.Names()...)
		assert.Equal(t, state, v.State, e.Title)
		assert.Regexp(t, `^(The|This) .*\.$`, v.Sentence, e.Title)
		assert.Equal(t, state != status.StateCaptured, len(v.Do) > 0, e.Title)
		assert.Equal(t, e.Title == "IPv6 gets past the mesh", len(v.Past) > 0, e.Title)
		for _, p := range v.Past {
			assert.NotEmpty(t, p.Do, p.Code)
		}
	}
	assert.Equal(t, len(want), seen)

	for setting, want := range map[string]string{
		`"config.linkerd.io/skip-inbound-ports": "1-65535"`:                                                     ", but no inbound ones.",
		`"config.linkerd.io/skip-inbound-ports": "1-65535", "config.linkerd.io/skip-outbound-ports": "1-65535"`: "Nothing of this pod is captured",
	} {
		v := verdict(t, `{"metadata": {"name": "a", "annotations": {`+setting+`, "linkerd.io/proxy-version": "1"}}, "spec": {"containers": [{"name": "linkerd-proxy"}]}}`, playground.Namespace, "linkerd")
		assert.Contains(t, v.Sentence, want)
		assert.Equal(t, strings.Contains(want, "Nothing"), v.Code == status.CodeNothingCaptured && v.State == status.StateFailed && len(v.Do) > 0)
		assert.Equal(t, strings.Contains(want, "inbound"), v.Code == status.CodePartly && v.State == status.StateCaptured)
	}

	// One mesh alone says its own reason; of several, only those that the pod has to do with.
	plain := `{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "linkerd-proxy"}, {"name": "linkerd-init"}]}}`
	v := verdict(t, plain, playground.Namespace, "istio")
	assert.Contains(t, v.Sentence, "no container is named istio-proxy")
	v = verdict(t, plain, playground.Namespace, builtin.Names()...)
	assert.Equal(t, `The plugin leaves this pod alone, because container "linkerd-init" sets the rules itself: it is the mesh's own, and captures the pod in the plugin's place.`, v.Sentence)
	assert.Empty(t, v.Because)

	// The proxy that is there counts, and not what the namespace asks another mesh for.
	const linkerds = `{"metadata": {"name": "a", "namespace": "shop", "annotations": {"linkerd.io/proxy-version": "v"}}, "spec": {"containers": [{"name": "linkerd-proxy"}]}}`
	for _, labels := range []string{`{"istio-injection": "enabled"}`, `{"istio-injection": "disabled"}`} {
		v = verdict(t, linkerds, `{"metadata": {"name": "shop", "labels": `+labels+`}}`, "istio")
		assert.Equal(t, statuscode.OtherDialect, v.Code, labels)
		assert.Contains(t, v.Sentence, "it is of the mesh Linkerd, and the plugin is configured for Istio (sidecar) only")
	}
	v = verdict(t, `{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "istio-proxy"}, {"name": "app", "securityContext": {"runAsUser": 1337}}]}}`, playground.Namespace, "istio")
	assert.Equal(t, status.StateOutside, v.State, "it has no annotation of the injector")
}

// TestPodsOnly: what is no pod is refused, and says what it is.
func TestPodsOnly(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "it is empty",
		"kind: Service":                        `it is a "Service"`,
		"kind: Deployment":                     "the Deployment has no template of pods",
		"kind: List":                           `it is a "List"`,
		"kind: Pod\n---\nkind: Pod":            "more than one document",
		`{"metadata": {"name": "a\nb"}}`:       "is no name",
		"a: &x [*x]":                           "line 1: the anchor x is in itself",
		"a: &x [aaaaaaaaa]\nb: *y":             "unknown anchor",
		"kind: Pod\nmetadata:\n  name: [1, 2]": "cannot unmarshal",
	} {
		_, err := explain.ParseManifest([]byte(text))
		assert.ErrorContains(t, err, want, text)
	}
	p, err := explain.ParseManifest([]byte("metadata: {name: a}\nstatus: {podIP: 10.0.0.1}"))
	require.NoError(t, err)
	assert.Equal(t, "default/a", p.Pod.Namespace+"/"+p.Pod.Name)
	assert.Len(t, explain.Addrs(p.Pod), 1)
	assert.False(t, p.Template)
}

// TestTemplates: a workload is read as the pod that its template says, which its controller would restart.
func TestTemplates(t *testing.T) {
	for kind, restart := range map[string]string{
		"Deployment": "rollout restart deployment/cart", "StatefulSet": "rollout restart statefulset/cart", "DaemonSet": "rollout restart daemonset/cart",
		"ReplicaSet": "its ReplicaSet makes another", "Job": "delete job/cart", "CronJob": "next Job that cronjob/cart makes",
	} {
		text := `{"kind": "` + kind + `", "metadata": {"name": "cart", "namespace": "shop"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}}}`
		if kind == "CronJob" {
			text = strings.Replace(text, `"spec": {`, `"spec": {"jobTemplate": {"spec": {`, 1) + "}}"
		}
		m, err := explain.ParseManifest([]byte(text))
		require.NoError(t, err, kind)
		assert.True(t, m.Template)
		assert.Equal(t, "shop/cart", m.Pod.Namespace+"/"+m.Pod.Name, kind)
		assert.Equal(t, map[string]string{"a": "b"}, m.Pod.Labels)
		assert.Len(t, m.Pod.Spec.Containers, 1)
		assert.Contains(t, remedy.Restart(m.Pod), restart)
	}
}

// TestRestart: the pods of a Deployment are restarted by it and not by its ReplicaSet, and no command has what a file puts into a name.
func TestRestart(t *testing.T) {
	controller := true
	for want, pod := range map[string]corev1.Pod{
		"kubectl --namespace shop rollout restart deployment/cart":                 {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-5d-x", Labels: map[string]string{"pod-template-hash": "5d"}, OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "cart-5d", UID: "u", Controller: &controller}}}},
		"its ReplicaSet makes another: kubectl --namespace shop delete pod cart-x": {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-x", UID: "u", OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "cart", UID: "u", Controller: &controller}}}},
		"its Job makes another": {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-x", UID: "u", OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "cart", UID: "u", Controller: &controller}}}},
		"static pod":            {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}}},
		"nothing replaces it: kubectl --namespace NAME delete pod NAME": {ObjectMeta: metav1.ObjectMeta{Namespace: "$(id)", Name: "a;reboot"}},
	} {
		assert.Contains(t, remedy.Restart(&pod), want)
	}
}
