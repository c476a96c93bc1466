// Command custom-plugin is a whole CNI plugin for a mesh of one's own: the
// verbs, the retries, the logs and the backends are meshcni's; the mesh is a
// dialect that stands in another package, or another repository.
package main

import (
	"context"
	"os"

	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

func main() {
	p := acmePlugin()
	os.Exit(p.Run(context.Background(), plugin.IO{
		Args: os.Args, Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}))
}

func acmePlugin() plugin.Plugin {
	return plugin.Plugin{
		Name:        "acme-cni",
		Dialect:     plugin.Only(acme.New()),
		AgentPrefix: acme.AgentPrefix,
		Transient:   kubepod.Transient,
		OpenPods: func(kubeconfig string) (plugin.Pods, error) {
			c, err := kubepod.Open(kubeconfig)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
	}
}
