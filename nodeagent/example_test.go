//go:build linux

package nodeagent_test

import (
	"context"
	"fmt"
	"os"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// The agent of a node, without a command line.
func ExampleNew() {
	meshes := []dialect.Dialect{linkerd.New("kube-system")} // or your own
	c := nodeagent.DefaultConfig(meshcni.Identity{Name: "acme"})
	c.Node, c.KubernetesHost = os.Getenv("NODE_NAME"), os.Getenv("KUBERNETES_SERVICE_HOST")
	c.Plugin.Dialects = netconf.Dialects{meshes[0].Name}
	agent, err := nodeagent.New(nodeagent.Options{Dialects: meshes, Config: c})
	if err != nil { // all that is wrong with the settings
		fmt.Println(err)
		return
	}
	if err := agent.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
}
