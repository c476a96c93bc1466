// Command kubectl-meshcni is "kubectl meshcni": it says how meshcni does in a cluster, explains what becomes of a pod's traffic,
// and checks the installation.
package main

import "github.com/meshcni/meshcni/cmd/kubectlcmd"

func main() { kubectlcmd.Program{}.Exec() }
