// Command gateway-taint keeps pods off nodes whose agent is not ready.
package main

import (
	"github.com/meshcni/meshcni/cmd/taintcmd"
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
)

func main() { taintcmd.Program{Identity: gateway.Identity}.Exec() }
