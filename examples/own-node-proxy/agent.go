//go:build linux

package ownnodeproxy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// Label is the label by which a namespace's pods join, with the value "on".
const Label = "gateway.example/mesh"

// Port is where the gateway listens in each pod.
const Port = 7001

// Dialect says which pods the gateway has, and that their outbound connections go to it. NodeProxy makes them pods that are handed
// over, while they run too.
func Dialect() dialect.Dialect {
	defaults := redirect.Default()
	defaults.Proxy = redirect.Proxy{OutboundPort: Port, InboundPort: Port + 1, Mark: redirect.Mark{Value: 0x700, Mask: 0xfff}}
	defaults.Inbound = redirect.Inbound{} // inbound connections pass, so nobody has to listen on InboundPort
	defaults.Names.ChainPrefix = "GATEWAY_"
	return dialect.Dialect{
		Name: "gateway",
		Policy: selection.Policy{Selectors: []selection.Selector{{
			Namespace: metav1.LabelSelector{MatchLabels: map[string]string{Label: "on"}},
		}}},
		NodeProxy: &dialect.NodeProxy{},
		Names:     defaults.Names,
		Build:     dialect.FromSchema(redirect.Schema{Defaults: defaults}),
	}
}

// Agent is the node agent of the mesh: meshcni-node with another dialect and another proxy. Run it with --ambient. It installs the
// mesh's plugin, which is a plugin.Plugin with the same dialect, and serves its socket; it watches the node's pods, keeps
// their namespaces, and hands them to the gateway. Nothing else is to be written.
func Agent(g *Gateway) nodecmd.Program {
	return nodecmd.Program{Identity: meshcni.Identity{Name: "gateway"}, Dialects: []dialect.Dialect{Dialect()}, NodeProxy: g}
}
