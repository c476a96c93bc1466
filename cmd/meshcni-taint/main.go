// Command meshcni-taint keeps pods off the nodes of a cluster whose agent is not ready, by a taint: see meshcni-taint run --help.
package main

import (
	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/cmd/taintcmd"
)

func main() { taintcmd.Program{SetLog: klog.SetSlogLogger}.Exec() }
