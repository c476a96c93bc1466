// Command acme-node is the node's agent: it installs the plugin, keeps it on the node, and looks after pods that started without it.
package main

import (
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/examples/mesh/acme/facts"
)

var program = nodecmd.Program{Identity: acme.Identity(), Dialects: acme.Dialects(), Facts: facts.List()}

func main() { program.Exec() }
