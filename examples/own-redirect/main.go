// Command own-redirect is meshcni-redirect for a mesh of your own: explain,
// rules, trace, compare, show, apply, check, cleanup and validate.
package main

import (
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
)

// On a node, the entry of type acme-cni in the network configuration gives the settings that no flag does.
var program = redirectcmd.Program{
	Identity: acme.Identity, Dialects: []dialect.Dialect{acme.New()},
}

func main() { program.Exec() }
