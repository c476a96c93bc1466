// Package ambientfacts has the facts of Istio's ambient mode that its rules do not need. Its CNI plugin is that of [istiofacts].
//
// [istiofacts]: https://pkg.go.dev/github.com/meshcni/meshcni/internal/facts/istiofacts
package ambientfacts

import (
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/status"
)

// New returns the facts. Who is in the mesh, the dialect's own selectors say.
func New() mesh.Facts {
	return mesh.Facts{
		Name: ambient.Name, Title: "Istio (ambient)",
		PluginTypes: []string{"istio-cni"},
		Advice: map[status.Code]mesh.Advice{
			status.CodeHasSidecar: {
				Because: "it has a sidecar of its own, which handles its traffic (%s)", Aside: true,
				Meant: "the sidecar is meant to stay; the plugin captures it if istio is among its dialects",
				Do:    "To have it in the ambient mesh, switch the sidecar's injection off: kubectl label namespace NAMESPACE istio-injection-",
			},
			status.CodeNotEnabled: {
				Do: "The plugin's own selectors decide (enablement_selectors, ambient.enablementSelectors in the chart's values): change them, or the labels of the pod or of its namespace",
			},
		},
		TestPod: mesh.TestPod{Labels: map[string]string{ambient.DataplaneMode: ambient.Name}},
	}
}
