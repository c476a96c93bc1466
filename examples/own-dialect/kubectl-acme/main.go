// Command kubectl-acme is kubectl's plugin for clusters with Acme's mesh: status, explain, rules, trace, show, check, test and migrate.
package main

import (
	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/examples/own-dialect/acmefacts"
	"github.com/meshcni/meshcni/mesh"
)

var program = kubectlcmd.Program{
	Identity: acme.Identity, Dialects: []dialect.Dialect{acme.New()}, Facts: mesh.List{acmefacts.New()},
}

func main() { program.Exec() }
