package deploy_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
)

// agentRoles are the rights by which the agent knows pods for the plugin: of each role and its binding, by the file of deploy/rbac.
func agentRoles(rendered objects) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, o := range granting(rendered) {
		for _, file := range []string{"agent", "agent-namespaces"} {
			if o.GetName() == "meshcni-"+file {
				if all[file] == nil {
					all[file] = map[string]any{}
				}
				all[file][o.GetKind()] = rights(o)
			}
		}
	}
	return all
}

// TestAgentRights: an agent that serves pods to the plugin may list and watch them, and their namespaces where these decide too; one
// that serves none, or has the right for another reason, gets no other. What it gets is in deploy/rbac.
func TestAgentRights(t *testing.T) {
	t.Parallel()
	blind := never.with(values{"detect": values{"enabled": false}})
	const pods, namespaces = "agent", "agent-namespaces"
	for name, c := range map[string]struct {
		values values
		roles  []string
	}{
		"defaults, which detect":      {nil, nil},
		"no detection":                {blind, []string{pods}},
		"required":                    {blind.with(values{"agent": "require"}), []string{pods}},
		"off":                         {blind.with(values{"agent": "off"}), nil},
		"off, bare":                   {blind.with(values{"agent": false, "dialect": "linkerd"}), nil},
		"repair":                      {blind.with(values{"repair": values{"mode": "label"}}), nil},
		"linkerd":                     {values{"dialect": "linkerd"}, []string{namespaces}},
		"linkerd, no detection":       {blind.with(values{"dialect": "linkerd", "agent": "require"}), []string{pods, namespaces}},
		"namespaces by label":         {values{"excludeNamespaceSelector": "a=b"}, []string{namespaces}},
		"ambient, which has the same": {blind.with(ambientOn), nil},
	} {
		want := map[string]map[string]any{}
		for _, file := range c.roles {
			want[file] = map[string]any{}
			for _, o := range rbacFile(t, file) {
				want[file][o.GetKind()] = rights(o)
			}
		}
		got := agentRoles(mustRender(t, c.values))
		assert.Equal(t, want, got, "%s: %v", name, maps.Keys(got))
	}
}
