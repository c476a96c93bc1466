// Command kubectl-meshcni-migrate is "kubectl meshcni migrate": it says what it takes to move from another plugin to meshcni, and moves nodes.
package main

import (
	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/migrate"
)

func main() { migrate.Program(kubectlcmd.Program{}).Exec() }
