package migrate

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/migrate/otherplugin"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// TestOwnMesh: a mesh of a program's own is moved from by its facts.
func TestOwnMesh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := redirect.Default()
	r.Proxy = redirect.Proxy{UIDs: []uint32{7001}, OutboundPort: 7001, InboundPort: 7002}
	r.Names.ChainPrefix = "FABRIC_"
	w.dialects = []dialect.Dialect{{
		Name: "fabric", Names: r.Names, Build: dialect.FromSchema(redirect.Schema{Defaults: r}), Policy: selection.Policy{ProxyContainers: []string{"fabric-proxy"}},
	}}
	w.facts = mesh.List{{Name: "fabric", Title: "The Fabric", PluginTypes: []string{"fabric-cni"}}}
	w.plugins = []otherplugin.Plugin{{
		Mesh: "fabric", Type: "fabric-cni", DaemonSet: []otherplugin.Mark{{Labels: map[string]string{"app": "fabric-cni"}}},
		Settings: map[string]otherplugin.Translate{"LEVEL": otherplugin.Keep("logLevel", otherplugin.Level)}, Remove: []string{"Remove fabric-cni."},
	}}
	w.Node(t, "a", kubectltest.Sound("a"))
	ds := kubectltest.AgentSet("fabric", "other")
	ds.Labels = map[string]string{"app": "fabric-cni"}
	ds.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LEVEL", Value: "warning"}}
	w.Do(t, http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", "fabric"), nil)
	w.DaemonSet(t, ds)
	_, out, errs := w.run(t)
	for _, want := range []string{"from fabric-cni: DaemonSet fabric/other", `logLevel: "warn"`, "Remove fabric-cni."} {
		assert.Contains(t, out, want, errs)
	}
}
