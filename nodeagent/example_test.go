//go:build linux

package nodeagent_test

import (
	"context"
	"fmt"
	"os"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/nodeagent"
)

// The agent of a node, without a command line.
func ExampleNew() {
	c := nodeagent.DefaultConfig(meshcni.Identity{Name: "acme"})
	c.Node, c.KubernetesHost = os.Getenv("NODE_NAME"), os.Getenv("KUBERNETES_SERVICE_HOST")
	agent, err := nodeagent.New(nodeagent.Options{Config: c})
	if err != nil { // all that is wrong with the settings
		fmt.Println(err)
		return
	}
	if err := agent.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
}
