package rights_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/api/rights"
	"github.com/meshcni/meshcni/internal/node/api"
)

// TestTaint: the taint's controller is said to need what its roles grant, and no more. That the chart grants the same as the file is
// e2e/deploy's to prove, and that of the agent's rights too.
func TestTaint(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/rbac/taint.yaml")
	require.NoError(t, err)
	var want []string
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var role rbacv1.Role // a ClusterRole has the same fields
		require.NoError(t, yaml.Unmarshal(document, &role))
		for _, rule := range role.Rules {
			a := authorizationv1.ResourceAttributes{Namespace: role.Namespace, Group: rule.APIGroups[0], Resource: rule.Resources[0]}
			if len(rule.ResourceNames) > 0 {
				a.Name = rule.ResourceNames[0]
			}
			for _, a.Verb = range rule.Verbs {
				want = append(want, api.Text(a))
			}
		}
	}
	var got []string
	for _, r := range rights.Taint("meshcni-system", "meshcni-node", "meshcni-taint") {
		assert.Empty(t, r.Account)
		got = append(got, api.Text(r.Attributes))
	}
	assert.NotEmpty(t, want)
	assert.ElementsMatch(t, want, got)
}

// TestAgent: a right that several things need is there once, and the pods asked for are those of the node.
func TestAgent(t *testing.T) {
	all := rights.Agent(rights.Needs{Namespace: "ns", Node: "n", Serves: true, Ambient: true, Namespaces: true, PluginAccount: "p"})
	count := map[string]int{}
	for _, r := range all {
		count[r.Account+" "+api.Text(r.Attributes)]++
		bound := r.Attributes.FieldSelector != nil
		assert.Equal(t, r.Attributes.Resource == "pods" && slices.Contains([]string{"list", "watch"}, r.Attributes.Verb), bound, r.Attributes)
	}
	for right, n := range count {
		assert.Equal(t, 1, n, right)
	}
	assert.Contains(t, count, " list pods")
	assert.Contains(t, count, "p get namespaces")
	assert.Len(t, rights.Least("n"), 2)
}
