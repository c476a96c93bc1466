package deploy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// granted are the rights of a role that is bound to an account, each as "ACCOUNT NAMESPACE VERB GROUP/RESOURCE/SUBRESOURCE NAME".
type granted map[string]bool

// grants returns what roles of the components grant to which account, the roles' own names apart.
func grants(t testing.TB, all objects, components ...string) granted {
	t.Helper()
	found := granted{}
	for _, kind := range []string{"Role", "ClusterRole"} {
		for _, o := range all.of(kind + "Binding") {
			var b rbacv1.RoleBinding // both kinds have the same fields
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b))
			if !slices.Contains(components, b.Labels["app.kubernetes.io/component"]) {
				continue
			}
			for _, r := range all.of(kind) {
				if r.GetName() != b.RoleRef.Name || r.GetNamespace() != b.Namespace {
					continue
				}
				var role rbacv1.Role
				require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object, &role))
				for _, subject := range b.Subjects {
					found.add(subject.Name, b.Namespace, role.Rules)
				}
			}
		}
	}
	return found
}

func (g granted) add(account, namespace string, rules []rbacv1.PolicyRule) {
	for _, r := range rules {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					for _, name := range names {
						resource, sub, _ := strings.Cut(resource, "/")
						g[fmt.Sprintf("%s %s %s %s/%s/%s %s", account, namespace, verb, group, resource, sub, name)] = true
					}
				}
			}
		}
	}
}

// TestTheAgentAsksWhatTheChartGrants: with any values, the agent says of itself and of the plugin that they need the rights that
// the chart's roles grant, and no others: "kubectl meshcni check" asks for these.
func TestTheAgentAsksWhatTheChartGrants(t *testing.T) {
	t.Parallel()
	names, all := settingsCases(t)
	for i, rendered := range renderAll(t, all) {
		t.Run(strings.ReplaceAll(names[i], ",", ""), func(t *testing.T) {
			t.Parallel()
			if len(rendered.of("ClusterRole")) == 0 {
				return // the values say that the roles are somebody else's
			}
			m := newMachine(t, rendered)
			app := nodecmd.Program{Env: m.env}
			s, err := app.Parse(append([]string{"run"}, m.args()...))
			require.NoError(t, err)
			asked, err := app.Permissions(s)
			require.NoError(t, err)
			account := one[appsv1.DaemonSet](t, rendered, "DaemonSet", "meshcni-node").Spec.Template.Spec.ServiceAccountName
			wanted := granted{}
			for _, r := range asked {
				a := r.Attributes
				if a.Resource == "nodes" { // its own, of which roles know no name
					a.Name = ""
				}
				who := r.Account
				if who == "" {
					who = account
				}
				wanted[fmt.Sprintf("%s %s %s %s/%s/%s %s", who, a.Namespace, a.Verb, a.Group, a.Resource, a.Subresource, a.Name)] = true
			}
			has := grants(t, rendered, "plugin", "node", "agent", "ambient", "repair")
			for right := range wanted {
				assert.Contains(t, has, right, "the chart does not grant it")
			}
			// The plugin may have the agent's token, and does not ask the API server for what only its agent may tell it.
			free := grants(t, rendered, "plugin")
			maps.DeleteFunc(free, func(right string, _ bool) bool {
				return !strings.HasPrefix(right, account+" ") && !(s.Plugin.Agent == netconf.AgentRequire && strings.Contains(right, "  get "))
			})
			if s.AutoEvict { // asked for once it is proven to end at the node
				free[account+"  create /pods/eviction "] = true
			}
			for right := range has {
				proves := s.AutoEvict && strings.Contains(right, " admissionregistration.k8s.io/validatingadmissionpolic") // the same
				if !wanted[right] && !free[right] && !proves && !strings.Contains(right, "security.openshift.io/") {       // which admission asks for
					assert.Fail(t, "nobody asks for it", "%s of %v", right, slices.Sorted(maps.Keys(wanted)))
				}
			}
		})
	}
}
