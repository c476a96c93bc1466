package kubectlcmd

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// fabric is a mesh that no code of ours knows, and its facts.
func fabric() (dialect.Dialect, mesh.Facts) {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{UIDs: []uint32{7001}, OutboundPort: 7001, InboundPort: 7002}
	r.Names.ChainPrefix = "FABRIC_"
	schema := redirect.Schema{Defaults: r, Settings: []redirect.Setting{{Field: "outbound.excludePorts", Keys: []string{"fabric.example/skip"}}}}
	return dialect.Dialect{
			Name: "fabric", Names: r.Names, Build: dialect.FromSchema(schema),
			Policy: selection.Policy{ProxyContainers: []string{"fabric-proxy"}, InitContainers: []string{"fabric-init"}},
		}, mesh.Facts{
			Name: "fabric", Title: "The Fabric", PluginTypes: []string{"fabric-cni"},
			Injection: mesh.Injection{
				Namespace: []mesh.Wish{mesh.Label("fabric.example/mesh", []string{"on"}, nil)}, Webhook: "injector.fabric.example", Unasked: mesh.Yes,
			},
		}
}

// TestOwnMesh: a mesh of a program's own is checked and tried by its facts.
func TestOwnMesh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d, facts := fabric()
	w.dialects, w.facts = []dialect.Dialect{d}, mesh.List{facts}
	y := newTrialFixture(t, w)
	w.Node(t, "a", kubectltest.Sound("a", func(n *agentapi.Node) {
		n.Dialects, n.Pods = []string{"fabric"}, nil
		n.Installed.Config = json.RawMessage(`{"type":"meshcni","dialect":"fabric","kubernetes":{"exclude_namespaces":["quiet"]}}`)
	}))
	w.Grant(t, "agent", "system:serviceaccount:meshcni-system:default", map[string][]string{"pods": {"list", "watch"}})
	w.Do(t, http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", "quiet"), nil)
	w.Do(t, http.MethodPost, webhooksPath, webhook("fabric", "injector.fabric.example", func(w *admissionv1.MutatingWebhook) {
		w.ClientConfig.Service = nil
		url := "https://x"
		w.ClientConfig.URL = &url
	}), nil)
	w.MeshPod(t, "shop", "bare", "a", func(p *corev1.Pod) { p.Annotations, p.Spec.Containers = nil, p.Spec.Containers[:1] })
	_, out, errs := w.run(t, "check", "-o", "json")
	found := map[status.Code][]string{}
	for _, f := range kubectltest.Decode[report](t, out).Findings {
		found[f.Code] = append(found[f.Code], f.Where...)
	}
	assert.Contains(t, found[codeInjectorExcluded], "namespace/quiet", out+errs)
	assert.Contains(t, found[codeInjectorMissed], "pod/shop/bare", out+errs)

	code, out, errs := y.test(t.Context())
	require.Equal(t, exitOK, code, out+errs)
	assert.Contains(t, out, "1 of 1 nodes were tried: 6 ok, 0 failed, 0 unknown")
}
