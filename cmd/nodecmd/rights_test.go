//go:build linux

package nodecmd

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/api"
)

// TestRights: each setting that needs a right asks for it, and without it nobody does.
func TestRights(t *testing.T) {
	dir, env := node(t)
	env["NODE_NAME"], env["POD_NAMESPACE"] = "n1", "mesh"
	app := Program{Env: lookup(env)}
	asked := func(args ...string) map[string]bool {
		s, err := app.Parse(append([]string{"run"}, args...))
		require.NoError(t, err)
		all, err := app.Permissions(s)
		require.NoError(t, err)
		got := map[string]bool{}
		for _, r := range all {
			got[strings.TrimSpace(r.Account+" "+api.Text(r.Attributes))] = true
			assert.NotEmpty(t, r.For)
			if selector := r.Attributes.FieldSelector; selector != nil {
				assert.Equal(t, []string{"n1"}, selector.Requirements[0].Values)
			}
		}
		return got
	}
	usual := asked()
	assert.Equal(t, map[string]bool{
		"meshcni-plugin get pods": true, "create serviceaccounts/token meshcni-plugin in namespace mesh": true, "list pods": true, "watch pods": true,
		"create events": true, "patch events": true, "create events in namespace default": true, "patch events in namespace default": true,
	}, usual)
	env["CNI_NETWORK_CONFIG"] = `{"type": "meshcni", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__", "exclude_namespace_selector": "mesh=off"}}`
	assert.True(t, asked()["meshcni-plugin get namespaces"], "the plugin goes by the template, whatever the flags are")
	env["CNI_NETWORK_CONFIG"] = `{"type": "meshcni", "dialect": "linkerd", "write_status": true, "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}`
	templated := asked("--dialect=istio")
	assert.True(t, templated["meshcni-plugin get namespaces"], "by the mesh that it names")
	assert.True(t, templated["meshcni-plugin patch pods/status"], "and by what the plugin writes")
	env["CNI_NETWORK_CONFIG"] = `{"type": "meshcni", "agent": "require", "run_dir": "` + filepath.Join(dir, "run") + `"}`
	assert.False(t, asked("--agent=off")["meshcni-plugin get pods"], "and by whom it asks")
	delete(env, "CNI_NETWORK_CONFIG")
	for args, more := range map[string][]string{
		"--repair=delete":                       {"create pods/eviction"},
		"--repair=label":                        {"patch pods/status"},
		"--write-status":                        {"meshcni-plugin patch pods/status"},
		"--exclude-namespace-selector=mesh=off": {"meshcni-plugin get namespaces", "list namespaces", "watch namespaces"},
		"--uninstall-on-exit=auto":              {"get daemonsets.apps meshcni-node in namespace mesh", "list daemonsets.apps meshcni-node in namespace mesh", "watch daemonsets.apps meshcni-node in namespace mesh", "get namespaces mesh in namespace mesh", "get nodes n1"},
	} {
		want := map[string]bool{}
		for right := range usual {
			want[right] = true
		}
		for _, right := range more {
			want[right] = true
		}
		assert.Equal(t, want, asked(args), args)
	}
	assert.NotContains(t, asked("--agent=require"), "meshcni-plugin get pods")
	assert.NotContains(t, asked("--agent=off", "--detect=false"), "list pods")
	assert.Contains(t, asked("--plugin-service-account="), "get pods", "the plugin has the agent's token")
}
