package meshcni_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
)

// TestDefaultIdentity: the names of our own programs, which users' scripts, alerts and manifests have.
func TestDefaultIdentity(t *testing.T) {
	i := meshcni.DefaultIdentity()
	assert.Equal(t, meshcni.Identity{
		Name: "meshcni", Plugin: "meshcni", Agent: "meshcni-node", AgentSelector: "app.kubernetes.io/name=meshcni,app.kubernetes.io/component=node",
		PluginAccount: "meshcni-plugin", Kubectl: "kubectl meshcni", Namespace: "meshcni-system", RunDir: "/var/run/meshcni",
		LabelPrefix: "meshcni.io/", MetricPrefix: "meshcni_", EnvPrefix: "MESHCNI_", Docs: "https://github.com/meshcni/meshcni/blob/main/docs/",
	}, i)
	assert.Equal(t, i, meshcni.Identity{Name: "meshcni"}.WithDefaults())
	require.NoError(t, i.Validate())
	for want, got := range map[string]string{
		"meshcni-redirect": i.Program("redirect"), "kubectl-meshcni": i.KubectlProgram(), "meshcni-node-": i.AgentPrefix(),
		"meshcni.io/not-redirected": i.Key("not-redirected"), "meshcni.io/agent-not-ready": i.Taint(), "meshcni_pods": i.Metric("pods"),
		"MESHCNI_CNI_CONF_DIR": i.Env("cni-conf-dir"), "docs/check.md#no-agents": i.Page("check.md#no-agents"),
		"kubectl meshcni check": i.Text("kubectl meshcni check"),
	} {
		assert.Equal(t, want, got)
	}
}

// TestIdentityFollowsFromName: one field is enough, and nothing of ours is left.
func TestIdentityFollowsFromName(t *testing.T) {
	i := meshcni.Identity{Name: "acme-mesh"}
	require.NoError(t, i.Validate())
	all := i.WithDefaults()
	assert.Equal(t, meshcni.Identity{
		Name: "acme-mesh", Plugin: "acme-mesh-cni", Agent: "acme-mesh-node", AgentSelector: "app.kubernetes.io/name=acme-mesh,app.kubernetes.io/component=node",
		PluginAccount: "acme-mesh-plugin", Kubectl: "kubectl acme-mesh", Namespace: "acme-mesh-system", RunDir: "/var/run/acme-mesh-cni",
		LabelPrefix: "acme-mesh.io/", MetricPrefix: "acme_mesh_", EnvPrefix: "ACME_MESH_", Docs: meshcni.DefaultIdentity().Docs,
	}, all)
	assert.Equal(t, all, all.WithDefaults())
	assert.Equal(t, "kubectl-acme-mesh", i.KubectlProgram())
	assert.Equal(t, "kubectl acme-mesh check, acme-mesh-node uninstall, /var/run/acme-mesh-cni/x, https://github.com/meshcni/meshcni/blob/main/docs/check.md",
		i.Text("kubectl meshcni check, meshcni-node uninstall, /var/run/meshcni/x, docs/check.md"))
	assert.Equal(t, "acme-mesh-repair, acme-mesh.io/agent-not-ready, acme_mesh_ready and ACME_MESH_RUN_DIR; https://github.com/meshcni/meshcni",
		i.Text("meshcni-repair, meshcni.io/agent-not-ready, meshcni_ready and MESHCNI_RUN_DIR; https://github.com/meshcni/meshcni"))
	assert.Equal(t, "https://acme.example/docs/check.md#x", meshcni.Identity{Name: "acme", Docs: "https://acme.example/docs/"}.Page("check.md#x"))
}

// TestIdentityIsRefused: one error names every field that is wrong.
func TestIdentityIsRefused(t *testing.T) {
	all := meshcni.Identity{
		Name: "Acme", Version: "v1\n", Plugin: "../acme", Agent: "acme_node", AgentSelector: "app", PluginAccount: "a/b", Kubectl: "kubectl  acme", Namespace: "a.b",
		RunDir: "run/acme", LabelPrefix: "acme.io", MetricPrefix: "acme-", EnvPrefix: "acme_", Docs: "docs/",
	}
	err := all.Validate()
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	fields := reflect.TypeFor[meshcni.Identity]()
	require.Len(t, lines, fields.NumField())
	for n := range fields.NumField() {
		assert.Contains(t, err.Error(), "identity: "+fields.Field(n).Name+" ", "each field is looked at")
	}
	for _, wrong := range []meshcni.Identity{
		{Name: strings.Repeat("a", 41)}, {Name: "acme."}, {Name: "acme{}"}, {RunDir: "/"}, {RunDir: "/var/../run"}, {RunDir: "/" + strings.Repeat("a", 90)},
		{LabelPrefix: "k8s.io/"}, {LabelPrefix: "acme.kubernetes.io/"}, {LabelPrefix: "/"}, {LabelPrefix: "a..b/"}, {AgentSelector: "a=b,"}, {AgentSelector: "a="},
		{AgentSelector: "a in (b)"}, {AgentSelector: "/a=b"}, {MetricPrefix: "1_"}, {MetricPrefix: "acme"}, {MetricPrefix: "_"}, {EnvPrefix: "A-B_"}, {Kubectl: "-rf"}, {Kubectl: "a;b"},
		{Docs: "http://acme.example/"}, {Docs: "https:// /"}, {Docs: "https:///"}, {Plugin: ".acme"}, {Version: "é"},
	} {
		assert.Error(t, wrong.Validate(), "%+v", wrong)
	}
	require.NoError(t, meshcni.Identity{AgentSelector: "acme.example/part=agent,tier=1"}.Validate())
}
