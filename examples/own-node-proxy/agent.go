//go:build linux

package ownnodeproxy

import (
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
)

// Agent is the node agent of the mesh: meshcni-node with another dialect and another proxy. Run it with --ambient. It installs the
// mesh's plugin, which has the same dialect, and serves its socket; it watches the node's pods, keeps
// their namespaces, and hands them to the gateway. Nothing else is to be written.
func Agent(g *Gateway) nodecmd.Program {
	return nodecmd.Program{Identity: gateway.Identity, Dialects: gateway.Dialects(), NodeProxy: g}
}
