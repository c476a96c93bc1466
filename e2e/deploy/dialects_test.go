package deploy_test

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin/netconf"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/meshcni/meshcni/dialect/builtin"
)

// TestSeveralDialects: the agent is told all of them, one alone as it has always been; the rights are those that any of them
// needs; and the pod of helm test is one that the first mesh with a sidecar has.
func TestSeveralDialects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values     values
		config     any
		tested     string // whose pod helm test is
		namespaces bool   // whether the plugin may read them
		repair     bool   // whether repair may
	}{
		"one":              {values{"dialect": "kuma"}, "kuma", "kuma", false, false},
		"a list of one":    {values{"dialect": []string{"kuma"}}, "kuma", "kuma", false, false},
		"two":              {values{"dialect": []string{"kuma", "istio"}}, []any{"kuma", "istio"}, "kuma", false, false},
		"one reads":        {values{"dialect": []string{"istio", "linkerd"}}, []any{"istio", "linkerd"}, "istio", true, false},
		"one writes rules": {values{"dialect": []string{"istio", "linkerd"}, "repair": values{"mode": "repair"}}, []any{"istio", "linkerd"}, "istio", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := mustRender(t, c.values)
			assert.Equal(t, c.config, configOf(t, all)["dialect"])
			plugin := one[rbacv1.ClusterRole](t, all, "ClusterRole", "meshcni-plugin")
			assert.Equal(t, c.namespaces, len(plugin.Rules) == 2, "%v", plugin.Rules)
			found := false
			for _, o := range granting(all).of("ClusterRole") {
				found = found || o.GetName() == "meshcni-repair-namespaces"
			}
			assert.Equal(t, c.repair, found)

			pod := one[corev1.Pod](t, all, "Pod", "meshcni-test")
			list, err := dialect.Configure(builtin.All(), netconf.Config{Dialects: namesOf(c.config), Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system"}}})
			require.NoError(t, err)
			choice, err := list.Choose(&pod, &corev1.Namespace{})
			require.NoError(t, err)
			require.NotNil(t, choice.Dialect, "%s", choice.Decision.Detail)
			assert.Equal(t, c.tested, choice.Dialect.Name)
			assert.Contains(t, pod.Spec.InitContainers[0].Args, "--dialect="+c.tested)
		})
	}
}

// namesOf are the names in the agent's configuration.
func namesOf(config any) (names []string) {
	list, ok := config.([]any)
	if !ok {
		list = []any{config}
	}
	for _, name := range list {
		names = append(names, name.(string))
	}
	return names
}
