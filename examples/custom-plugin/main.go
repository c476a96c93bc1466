// Command custom-plugin is a complete CNI plugin for a mesh of your own. The verbs, retries, logs and backends are
// meshcni's; the mesh is a dialect from another package.
package main

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

var acmePlugin = plugin.Plugin{
	Identity: acme.Identity,
	Dialects: []dialect.Dialect{acme.New()},
	OpenPods: plugin.PodsFrom(kubepod.Open),
}

func main() { acmePlugin.Exec() }
