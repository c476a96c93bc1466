// Package gateway has what the programs of a made-up mesh have in common: its names, and its dialect. A pod is in the mesh by a label of its
// namespace, and its outbound connections go to a proxy of the node.
package gateway

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// Identity names the mesh's programs, objects, directories, labels, metrics and variables.
var Identity = meshcni.Identity{Name: "gateway", Version: "v1.0.0", LabelPrefix: "gateway.example/"}

// Label is the label by which a namespace's pods join, with the value "on".
const Label = "gateway.example/mesh"

// Port is where the gateway listens in each pod.
const Port = 7001

// Dialects returns the only one of the programs. It says which pods the gateway has, and that their outbound connections go to it.
// NodeProxy makes them pods that are handed over, while they run too.
func Dialects() []dialect.Dialect {
	defaults := redirect.Default()
	defaults.Proxy = redirect.Proxy{OutboundPort: Port, InboundPort: Port + 1, Mark: redirect.Mark{Value: 0x700, Mask: 0xfff}}
	defaults.Inbound = redirect.Inbound{Ports: redirect.NoPorts()} // inbound connections pass, so nobody has to listen on InboundPort
	defaults.Names.ChainPrefix = "GATEWAY_"
	return []dialect.Dialect{{
		Name: "gateway",
		Policy: selection.Policy{Selectors: []selection.Selector{{
			Namespace: metav1.LabelSelector{MatchLabels: map[string]string{Label: "on"}},
		}}},
		NodeProxy: &dialect.NodeProxy{},
		Names:     defaults.Names,
		Build:     dialect.FromSchema(redirect.Schema{Defaults: defaults}),
	}}
}
