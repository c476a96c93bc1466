// Command own-redirect is meshcni-redirect for a mesh of your own: explain,
// rules, trace, compare, show, apply, check, cleanup and validate.
package main

import (
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
)

var program = redirectcmd.Program{Name: "acme-redirect", Version: "v1.0.0", Dialects: []dialect.Dialect{acme.New()}}

func main() { program.Exec() }
