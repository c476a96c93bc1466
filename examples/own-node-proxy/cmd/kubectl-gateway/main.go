// Command kubectl-gateway is "kubectl gateway": status, explain, check and the rest, for clusters with this mesh.
package main

import (
	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
)

func main() { kubectlcmd.Program{Identity: gateway.Identity, Dialects: gateway.Dialects()}.Exec() }
