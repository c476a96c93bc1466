// Command appmesh-cni is a CNI plugin for App Mesh's pods.
package main

import (
	"context"
	"os"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/appmesh"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

func main() {
	p := plugin.Plugin{Dialects: []dialect.Dialect{appmesh.New()}, OpenPods: plugin.PodsFrom(kubepod.Open)}
	os.Exit(p.Run(context.Background(), plugin.IO{
		Args: os.Args, Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}))
}
