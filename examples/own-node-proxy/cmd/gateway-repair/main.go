// Command gateway-repair finds a node's pods that started without the mesh, apart from the agent.
package main

import (
	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
)

func main() { repaircmd.Program{Identity: gateway.Identity, Dialects: gateway.Dialects()}.Exec() }
