package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// TestAgentRolesGrantNoMore asks the server, for the roles of --agent and of --ambient, whether it would allow what they are for, and
// everything that might be tempting: it refuses all else. RBAC knows no nodes, so what is allowed holds for pods of every node, by every
// name and in every namespace; what is refused is refused everywhere, in the agent's own namespace too.
func TestAgentRolesGrantNoMore(t *testing.T) {
	t.Parallel()
	s := kubetest.Shared(t)
	a := newAdmin(t, s)
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	resources := strings.Fields("pods pods/status pods/eviction pods/log pods/exec pods/attach pods/portforward pods/binding pods/ephemeralcontainers pods/resize " +
		"events nodes nodes/status nodes/proxy namespaces namespaces/finalize namespaces/status secrets configmaps services endpoints serviceaccounts serviceaccounts/token " +
		"leases.coordination.k8s.io deployments.apps daemonsets.apps jobs.batch poddisruptionbudgets.policy networkpolicies.networking.k8s.io " +
		"clusterroles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io mutatingwebhookconfigurations.admissionregistration.k8s.io")
	for name, m := range map[string]struct {
		manifests []string
		want      []string
	}{
		"agent":                      {[]string{"agent"}, []string{"list pods", "watch pods"}},
		"agent, namespaces decide":   {[]string{"agent", "agent-namespaces"}, []string{"list pods", "watch pods", "list namespaces", "watch namespaces"}},
		"namespaces alone":           {[]string{"agent-namespaces"}, []string{"list namespaces", "watch namespaces"}},
		"ambient":                    {[]string{"ambient"}, []string{"list pods", "watch pods", "list namespaces", "watch namespaces", "patch pods/status", "create events", "patch events"}},
		"ambient beside detection":   {[]string{"ambient", "repair-none"}, []string{"list pods", "watch pods", "list namespaces", "watch namespaces", "patch pods/status", "create events", "patch events"}},
		"none of them, by oversight": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			user, _ := account(t, a, m.manifests...)
			want := map[string]bool{}
			for _, what := range m.want {
				want[what] = true
			}
			for _, resource := range resources {
				for _, verb := range verbs {
					p := permission(verb, resource)
					what := verb + " " + resource
					assert.Equal(t, want[what], allowed(t, a, user, p), what)
					if !want[what] && resource != "pods" && resource != "pods/status" && resource != "namespaces" && resource != "secrets" {
						continue // what is asked of every namespace covers each
					}
					if strings.HasPrefix(resource, "namespaces") || verb == "deletecollection" {
						continue
					}
					for _, at := range []api.Right{{Namespace: agentNamespace}, {Namespace: "kube-system"}, {Namespace: "shop", Name: "of-another-node"}} {
						at.Verb, at.Group, at.Resource, at.Subresource = p.Verb, p.Group, p.Resource, p.Subresource
						assert.Equal(t, want[what], allowed(t, a, user, at), "%s", api.Text(at))
					}
				}
			}
		})
	}
}
