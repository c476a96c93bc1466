// Command meshcni-repair finds the pods of one node that started without the mesh's redirection, and labels, deletes or
// repairs them: the part of meshcni-node that does so, for those who run it apart from the agent.
package main

import (
	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/cmd/repaircmd"
)

func main() { repaircmd.Program{SetLog: klog.SetSlogLogger}.Exec() }
