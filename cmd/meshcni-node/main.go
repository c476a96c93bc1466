//go:build linux

// Command meshcni-node puts the meshcni plugin on a node and keeps it there, and
// repairs pods that started without it: see meshcni-node run --help.
package main

import "github.com/meshcni/meshcni/cmd/nodecmd"

func main() { nodecmd.Program{}.Exec() }
