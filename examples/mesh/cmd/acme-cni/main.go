// Command acme-cni is the mesh's CNI plugin.
package main

import (
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

// A test has validated these two.
var program = plugin.Plugin{Identity: acme.Identity(), Dialects: acme.Dialects(), OpenPods: kubepod.Open}

func main() { program.Exec() }
