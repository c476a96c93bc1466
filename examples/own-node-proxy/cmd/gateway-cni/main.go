// Command gateway-cni is the mesh's CNI plugin.
package main

import (
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

func main() {
	plugin.Plugin{Identity: gateway.Identity, Dialects: gateway.Dialects(), OpenPods: kubepod.Open}.Exec()
}
