// Command kubectl-acme is "kubectl acme": status, explain, check and the rest, for clusters with this mesh.
package main

import (
	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/examples/mesh/acme/facts"
)

var program = kubectlcmd.Program{Identity: acme.Identity(), Dialects: acme.Dialects(), Facts: facts.List()}

func main() { program.Exec() }
