//go:build linux

// Command own-agent is a node agent for a mesh of your own. It installs the mesh's CNI plugin (see custom-plugin),
// keeps it on the node, and repairs pods that started without it. Its flags are those of meshcni-node.
package main

import (
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/installer"
)

func program() nodecmd.Program {
	c := installer.Default()
	c.BinSourceDir, c.RunDir, c.AgentPrefix = "/opt/acme/bin", "/var/run/acme-cni", acme.AgentPrefix
	c.Plugin.Type, c.Plugin.PodNamespace, c.Plugin.ReadyWithoutAgent = "acme-cni", "acme-system", true
	return nodecmd.Program{Name: "acme-node", Version: "v1.0.0", Dialects: []dialect.Dialect{acme.New()}, Config: c}
}

func main() { program().Exec() }
