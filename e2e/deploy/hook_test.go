package deploy_test

import (
	"github.com/meshcni/meshcni/plugin/netconf"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/redirect"
)

// TestTheTestPodIsOfTheMesh: the pod of helm test is one that the plugin
// redirects, with a mesh of each kind; it checks as a user whose connections are
// redirected, and as the proxy where the proxy can see anything.
func TestTheTestPodIsOfTheMesh(t *testing.T) {
	t.Parallel()
	for _, name := range dialectNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := mustRender(t, values{"dialect": name})
			pod := one[corev1.Pod](t, all, "Pod", "meshcni-test")
			var mounted corev1.Pod
			require.NoError(t, yaml.UnmarshalStrict([]byte(one[corev1.ConfigMap](t, all, "ConfigMap", "meshcni-test-pod").Data["pod.yaml"]), &mounted))
			assert.Equal(t, pod, mounted, "what the checks read of the pod")

			strict, err := dialect.Configure(builtin.All(), netconf.Config{
				Dialects: []string{name}, Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system"}}, UncapturedFamily: redirect.UncapturedDrop, RefuseProxyUID: true,
			})
			require.NoError(t, err)
			mesh := strict.Lookup(name)
			decision := mesh.Decide(&pod, &corev1.Namespace{})
			require.True(t, decision.Selected, "%s", decision)
			built, err := mesh.Redirect(&pod, &corev1.Namespace{}, nil)
			require.NoError(t, err)

			_, err = strict.Plan(dialect.Subject{Pod: &pod, Namespace: &corev1.Namespace{}})
			require.NoError(t, err, "where the plugin refuses what may pass for the proxy, it starts this pod")

			proxy := mesh.Policy.Proxy(&pod)
			if name != "consul" { // which goes by annotations
				require.NotNil(t, proxy)
			}
			app, proxyID := pod.Spec.InitContainers[0].SecurityContext, pod.Spec.Containers[0].SecurityContext
			assert.Contains(t, built.Redirect.Proxy.UIDs, uint32(*proxyID.RunAsUser))
			assert.NotContains(t, built.Redirect.Proxy.UIDs, uint32(*app.RunAsUser))
			assert.NotContains(t, built.Redirect.Proxy.GIDs, uint32(*app.RunAsGroup))
		})
	}
}

// testedWith renders the chart for a mesh, and returns the name of the pod of helm test.
func testedWith(t testing.TB, dialect string) (all objects, name string) {
	t.Helper()
	if dialect == "ambient" {
		return mustRender(t, ambientOn), "meshcni-test-ambient"
	}
	return mustRender(t, values{"dialect": dialect}), "meshcni-test"
}

// TestTheTestPodOfAmbient: it is a pod that ambient mode selects, whatever else is in the list; there is none where other labels
// than the pod's select, and the other mesh's pod is beside it.
func TestTheTestPodOfAmbient(t *testing.T) {
	t.Parallel()
	all, name := testedWith(t, "ambient")
	pod := one[corev1.Pod](t, all, "Pod", name)
	set, err := dialect.Configure(builtin.All(), netconf.Config{
		Dialects: []string{"istio", "ambient"}, Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system"}}, UncapturedFamily: redirect.UncapturedDrop, RefuseProxyUID: true,
	})
	require.NoError(t, err)
	plan, err := set.Plan(dialect.Subject{Pod: &pod, Namespace: &corev1.Namespace{}})
	require.NoError(t, err)
	assert.Equal(t, "ambient", plan.Dialect)
	assert.Empty(t, pod.Spec.InitContainers, "the plugin starts it once the proxy listens")
	assert.Len(t, all.of("Pod"), 2)
	for what, v := range map[string]values{
		"ambient alone":   {"dialect": "ambient"},
		"other selectors": {"ambient": values{"enablementSelectors": []values{{"podSelector": values{"matchLabels": values{"mesh": "yes"}}}}}},
	} {
		assert.Len(t, mustRender(t, ambientOn.with(v)).of("Pod"), 1, what)
	}
}

// TestNoTestWhereItWouldFail: in a namespace that is left alone, and with a
// plugin of unknown configuration.
func TestNoTestWhereItWouldFail(t *testing.T) {
	t.Parallel()
	for what, v := range map[string]values{
		"namespace":  {"excludeNamespaces": []string{namespace}},
		"template":   {"pluginConfig": `{"type": "meshcni"}`},
		"turned off": {"tests": values{"enabled": false}},
	} {
		assert.Empty(t, mustRender(t, ambientOn.with(v)).of("Pod"), what)
	}
	assert.Empty(t, mustRender(t, acme).of("Pod"), "the chart does not know how a pod of another product's mesh looks")
	annotations := one[corev1.Pod](t, mustRender(t, values{"profile": "openshift"}), "Pod", "meshcni-test").Annotations
	assert.Equal(t, "default/meshcni", annotations["k8s.v1.cni.cncf.io/networks"])
}
