// Command gateway-redirect explains, prints, traces, applies, checks and removes a pod's rules.
package main

import (
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
)

func main() { redirectcmd.Program{Identity: gateway.Identity, Dialects: gateway.Dialects()}.Exec() }
