package kubectlcmd

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/status"
)

// webhook is a configuration of one webhook, with a service in the namespace mesh.
func webhook(configuration, name string, change ...func(*admissionv1.MutatingWebhook)) *admissionv1.MutatingWebhookConfiguration {
	none, second := admissionv1.SideEffectClassNone, int32(1)
	policy := admissionv1.Ignore
	w := admissionv1.MutatingWebhook{
		Name: name, SideEffects: &none, TimeoutSeconds: &second, FailurePolicy: &policy, AdmissionReviewVersions: []string{"v1"},
		ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "mesh", Name: "injector"}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}},
	}
	for _, c := range change {
		c(&w)
	}
	return &admissionv1.MutatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"}, ObjectMeta: metav1.ObjectMeta{Name: configuration},
		Webhooks: []admissionv1.MutatingWebhook{w},
	}
}

func inNamespacesWith(key, value string) func(*admissionv1.MutatingWebhook) {
	return func(w *admissionv1.MutatingWebhook) {
		w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
}

const webhooksPath = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

// TestCheckInjectors: injector and plugin are compared by namespace and by pod, and an injector that nobody answers for is found.
func TestCheckInjectors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Node(t, "a", kubectltest.Sound("a"))
	w.Grant(t, "agent", "system:serviceaccount:meshcni-system:default", map[string][]string{"pods": {"list", "watch"}})
	texts := func() map[status.Code][]string {
		_, out, _ := w.run(t, "check", "-o", "json")
		all := map[status.Code][]string{}
		for _, f := range kubectltest.Decode[report](t, out).Findings {
			all[f.Code] = append(all[f.Code], f.Level+" "+strings.Join(f.Where, " "))
		}
		return all
	}
	assert.Equal(t, map[status.Code][]string{codeNoInjector: {"warning "}}, texts(), "neither injector nor pods")

	label := func(namespace string) {
		w.Do(t, http.MethodPost, "/api/v1/namespaces", map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace, "labels": map[string]string{"istio-injection": "enabled"}},
		}, nil)
	}
	label("shop")
	label("quiet") // which the plugin leaves alone
	w.Do(t, http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", "mesh"), nil)
	bare := func(p *corev1.Pod) { p.Annotations, p.Spec.Containers = nil, p.Spec.Containers[:1] }
	w.MeshPod(t, "shop", "cart", "a")
	w.MeshPod(t, "shop", "early", "a", bare)
	w.MeshPod(t, "shop", "not-wanted", "a", bare, func(p *corev1.Pod) { p.Labels["sidecar.istio.io/inject"] = "false" })
	w.MeshPod(t, "other", "outside", "a", bare)
	w.MeshPod(t, "quiet", "outside", "a", bare)
	assert.Empty(t, texts(), "pods of the mesh are made by hand")

	name := "istio-sidecar-injector"
	w.Do(t, http.MethodPost, webhooksPath, webhook(name, "namespace.sidecar-injector.istio.io", inNamespacesWith("istio-injection", "enabled")), nil)
	w.Do(t, http.MethodPost, webhooksPath, webhook("linkerd", "linkerd-proxy-injector.linkerd.io"), nil) // the plugin has nothing to do with it
	both := map[status.Code][]string{
		codeInjectorExcluded: {"error namespace/quiet"}, codeInjectorMissed: {"warning pod/shop/early"},
		codeInjectorDown: {"error webhook/" + name + "/namespace.sidecar-injector.istio.io"},
	}
	assert.Equal(t, both, texts())
	_, out, _ := w.run(t, "check")
	assert.Contains(t, out, "failurePolicy is Ignore: new pods start without a proxy, outside of the mesh")

	not, yes := false, true
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "injector-1", Labels: map[string]string{discoveryv1.LabelServiceName: "injector"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &not}}},
	}
	const slices = "/apis/discovery.k8s.io/v1/namespaces/mesh/endpointslices"
	w.Do(t, http.MethodPost, slices, slice, nil)
	assert.Equal(t, both, texts(), "an endpoint that is not ready is none")
	slice.Endpoints[0].Conditions.Ready = &yes
	w.Do(t, http.MethodPut, slices+"/injector-1", slice, nil)
	delete(both, codeInjectorDown)
	assert.Equal(t, both, texts())

	w.Do(t, http.MethodDelete, webhooksPath+"/"+name, nil, nil)
	w.Do(t, http.MethodPost, webhooksPath, webhook(name, "namespace.sidecar-injector.istio.io", inNamespacesWith("istio-injection", "enabled"), func(w *admissionv1.MutatingWebhook) {
		w.MatchConditions = []admissionv1.MatchCondition{{Name: "c", Expression: "true"}}
	}), nil)
	assert.Equal(t, map[status.Code][]string{codeInjectorUnknown: {"unknown namespace/quiet"}}, texts(), "an expression may say otherwise")

	token := w.ServiceAccount(t, "shop", "viewer")
	w.Grant(t, "viewer", "system:serviceaccount:shop:viewer", map[string][]string{"nodes": {"list"}, "pods": {"list", "get"}, "namespaces": {"list"}, "daemonsets.apps": {"list"}})
	_, out, _ = w.run(t, "--kubeconfig", w.Server.Kubeconfig(t, token), "check")
	assert.Contains(t, out, "unknown: injector-unknown: list the injectors' webhooks: ")
	assert.NotContains(t, out, "no-injector", "that there is none is not known")
}

// TestInjectors: each mesh's webhook is known by its name and its rules, and each mesh's word on a pod is understood.
func TestInjectors(t *testing.T) {
	read := func(name string, change ...func(*admissionv1.MutatingWebhook)) (injector, bool) {
		return injectorOf(facts.All(), "c", webhook("c", name, change...).Webhooks[0])
	}
	for name, want := range map[string]string{
		"rev.namespace.sidecar-injector.istio.io": "istio", "sidecar-injector.istio.io": "istio", "linkerd-proxy-injector.linkerd.io": "linkerd", "pods-kuma-injector.kuma.io": "kuma",
		"consul-connect-injector.consul.hashicorp.com": "consul", "linkerd-tap-injector.linkerd.io": "", "mesh.example.com": "", "sidecar-injector.istio.io.example.com": "",
	} {
		i, ok := read(name)
		assert.Equal(t, want, i.mesh, name)
		assert.Equal(t, want != "", ok, name)
	}
	_, ok := read("sidecar-injector.istio.io", func(w *admissionv1.MutatingWebhook) { w.Rules[0].Resources = []string{"services"} })
	assert.False(t, ok, "it is not about pods")
	_, ok = read("sidecar-injector.istio.io", func(w *admissionv1.MutatingWebhook) {
		w.Rules[0].Operations = []admissionv1.OperationType{admissionv1.Update}
	})
	assert.False(t, ok, "it is not about new pods")
	fail := admissionv1.Fail
	i, _ := read("sidecar-injector.istio.io", func(w *admissionv1.MutatingWebhook) { w.FailurePolicy = &fail })
	assert.Equal(t, "no pod is ready behind the service mesh/injector of the injector of istio, and its failurePolicy is Fail: pods that it selects are not made", i.downText())

	for _, test := range []struct {
		webhook, pod, namespace string
		change                  func(*admissionv1.MutatingWebhook)
		want                    mesh.Answer
	}{
		{"sidecar-injector.istio.io", `{}`, `{}`, nil, mesh.Yes},
		{"sidecar-injector.istio.io", `{"annotations":{"sidecar.istio.io/inject":"false"}}`, `{}`, nil, mesh.No},
		{"sidecar-injector.istio.io", `{"labels":{"sidecar.istio.io/inject":"true"},"annotations":{"sidecar.istio.io/inject":"false"}}`, `{}`, nil, mesh.Yes},
		{"sidecar-injector.istio.io", `{"labels":{"sidecar.istio.io/inject":"maybe"}}`, `{}`, nil, mesh.Unknown},
		{"sidecar-injector.istio.io", `{}`, `{"labels":{"a":"c"}}`, inNamespacesWith("a", "b"), mesh.No},
		{"sidecar-injector.istio.io", `{}`, `{}`, func(w *admissionv1.MutatingWebhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"sidecar.istio.io/inject": "true"}}
		}, mesh.No},
		{"linkerd-proxy-injector.linkerd.io", `{}`, `{}`, nil, mesh.No},
		{"linkerd-proxy-injector.linkerd.io", `{}`, `{"annotations":{"linkerd.io/inject":"enabled"}}`, nil, mesh.Yes},
		{"linkerd-proxy-injector.linkerd.io", `{"annotations":{"linkerd.io/inject":"disabled"}}`, `{"annotations":{"linkerd.io/inject":"enabled"}}`, nil, mesh.No},
		{"linkerd-proxy-injector.linkerd.io", `{"annotations":{"linkerd.io/inject":"ingress"}}`, `{}`, nil, mesh.Yes},
		{"pods-kuma-injector.kuma.io", `{}`, `{"labels":{"kuma.io/sidecar-injection":"enabled"}}`, nil, mesh.Yes},
		{"pods-kuma-injector.kuma.io", `{"labels":{"kuma.io/sidecar-injection":"yes"}}`, `{}`, nil, mesh.Yes},
		{"pods-kuma-injector.kuma.io", `{"labels":{"kuma.io/sidecar-injection":"odd"}}`, `{"labels":{"kuma.io/sidecar-injection":"yes"}}`, nil, mesh.Unknown},
		{"pods-kuma-injector.kuma.io", `{"labels":{"kuma.io/sidecar-injection":"disabled"}}`, `{"labels":{"kuma.io/sidecar-injection":"enabled"}}`, nil, mesh.No},
		{"a-connect-injector.consul.hashicorp.com", `{}`, `{}`, nil, mesh.Unknown},
		{"a-connect-injector.consul.hashicorp.com", `{"annotations":{"consul.hashicorp.com/connect-inject":"true"}}`, `{}`, nil, mesh.Yes},
	} {
		var pod corev1.Pod
		var namespace corev1.Namespace
		require.NoError(t, json.Unmarshal([]byte(test.pod), &pod.ObjectMeta))
		require.NoError(t, json.Unmarshal([]byte(test.namespace), &namespace.ObjectMeta))
		changes := []func(*admissionv1.MutatingWebhook){}
		if test.change != nil {
			changes = append(changes, test.change)
		}
		i, ok := read(test.webhook, changes...)
		require.True(t, ok)
		assert.Equal(t, test.want, i.takes(&pod, &namespace), "%s %s %s", test.webhook, test.pod, test.namespace)
	}
}
