// Command appmesh-cni is a CNI plugin for App Mesh's pods.
package main

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/appmesh"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

func main() {
	plugin.Plugin{Dialects: []dialect.Dialect{appmesh.New()}, OpenPods: plugin.PodsFrom(kubepod.Open)}.Exec()
}
