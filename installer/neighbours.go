//go:build linux

package installer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/hostpath"
)

// meshPlugins are the types of the plugins by which meshes redirect pods' traffic, as their installers write them.
var meshPlugins = map[string]string{
	"istio-cni":     "Istio",
	"linkerd-cni":   "Linkerd",
	"kuma-cni":      "Kuma",
	"consul-cni":    "Consul",
	"kmesh-cni":     "Kmesh",
	"merbridge-cni": "Merbridge",
	"osm-cni":       "Open Service Mesh",
	"aws-appmesh":   "AWS App Mesh",
	"meshcni":       "another meshcni", // for a plugin of another type
}

// Neighbour is the plugin of another mesh in the list that the runtime loads. Such plugins write rules of their own into the
// pods that ours captures. It is a warning and does not block: our entry is in force all the same, and while one mesh's plugin
// takes over from another's both are in the list on purpose. A list that the runtime does not load is none of it.
//
// It is found by its type: istio-cni, linkerd-cni, kuma-cni, consul-cni, kmesh-cni, merbridge-cni, osm-cni, aws-appmesh,
// meshcni, and those of [Config].MeshPlugins; among the entries of the list, those that an entry delegates to, and those
// in the list's directory (CNI 1.1).
type Neighbour struct {
	// Plugin is its type, Mesh whose it is; empty for one of Config.MeshPlugins.
	Plugin, Mesh string
	// File is the list's path on the host.
	File string
	// Position in the chain, seen from our entry: "before", "after" or "beside" it.
	Position string
}

// The values of [Neighbour].Position.
const (
	positionBefore = "before"
	positionAfter  = "after"
	positionBeside = "beside" // our entry is not in that list
)

// OtherMeshPlugins returns the types of the plugins that are known to be other meshes', MeshPlugins among them.
func (c Config) OtherMeshPlugins() []string {
	return c.otherMeshPlugins(c.ownType())
}

func (c Config) otherMeshPlugins(own string) []string {
	types := slices.AppendSeq(slices.Clone(c.MeshPlugins), maps.Keys(meshPlugins))
	return slices.DeleteFunc(types, func(t string) bool { return t == own })
}

// String returns for example "istio-cni" (Istio), after our entry in /etc/cni/net.d/10-x.conflist.
func (n Neighbour) String() string {
	mesh := ""
	if n.Mesh != "" {
		mesh = " (" + n.Mesh + ")"
	}
	return fmt.Sprintf("%q%s, %s our entry in %s", n.Plugin, mesh, n.Position, n.File)
}

// Text names its place, its effect, and the remedy.
func (n Neighbour) Text() string {
	does := "pods get its rules too, and ours replace those in chains of the same names"
	if n.Position == positionAfter {
		does = "it may replace our rules, since it runs after ours and its chains may have the same names"
	}
	return fmt.Sprintf("the plugin of another mesh is chained with ours: %s; %s; keep one of the two on this node: uninstall the other, "+
		"then delete the pods that started with both", n, does)
}

// neighbours finds other meshes' plugins in the list with our entry; where that is not chained, in the one that the runtime
// loads.
func (p *planner) neighbours() (found []Neighbour) {
	file := p.Target
	if !p.c.Chained {
		choice, err := conflist.Primary(p.o.conf, p.oursAlone()...)
		if err != nil {
			return nil // a network that ours does not depend on
		}
		file = choice.Name
	}
	f := p.parse(file)
	if f == nil {
		return nil
	}
	more, _ := f.DropIns(p.o.conf) // a list with bad ones is not chosen
	types := p.c.otherMeshPlugins(p.typ)
	position := positionBefore
	if !p.c.Chained {
		position = positionBeside
	}
	for _, plugin := range append(slices.Clone(f.Plugins()), more...) {
		if plugin.Type == p.typ {
			position = positionAfter
		}
		for _, m := range mentions(plugin.Raw, types, "") {
			known := slices.ContainsFunc(found, func(n Neighbour) bool { return n.Plugin == m.typ })
			if m.plugin && !known {
				found = append(found, Neighbour{m.typ, meshPlugins[m.typ], hostpath.OnHost(p.path(file)), position})
			}
		}
	}
	return found
}
