// Command acme-redirect explains, prints, traces, applies, checks and removes a pod's rules, and "validate" proves them from inside the pod.
package main

import (
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/examples/mesh/acme/facts"
)

var program = redirectcmd.Program{Identity: acme.Identity(), Dialects: acme.Dialects(), Facts: facts.List()}

func main() { program.Exec() }
