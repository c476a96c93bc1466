//go:build linux

package nodeagent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/status"
)

// servedBy reports whether one of the plugins beside ours redirects the pods of a dialect.
func servedBy(neighbours []installer.Neighbour, meshes mesh.List, dialect string) bool {
	types := meshes.Of(dialect, nil).PluginTypes
	return slices.ContainsFunc(neighbours, func(n installer.Neighbour) bool { return slices.Contains(types, n.Plugin) })
}

// maxOthers bounds the pods of a mesh that a warning names.
const maxOthers = 3

// otherDialects says of each mesh that has pods on the node and is not configured, which these are. Whoever makes pods decides of which mesh
// they look, and gets no more events by making more.
func (r *repairer) otherDialects(all []status.Pod) (found []status.News) {
	names := map[string][]string{}
	for _, p := range all {
		if p.Reason == statuscode.OtherDialect {
			names[p.Dialect] = append(names[p.Dialect], p.Namespace+"/"+p.Name)
		}
	}
	for _, mesh := range slices.Sorted(maps.Keys(names)) {
		pods, more := names[mesh], ""
		if n := len(pods) - maxOthers; n > 0 {
			pods, more = pods[:maxOthers], fmt.Sprintf(" and %d more", n)
		}
		n := news.New(status.KindNotice, news.OtherDialect, fmt.Sprintf("%d of the node's pods are of mesh %s, which the plugin is not configured for (dialect %s), and their traffic bypasses the mesh: %s%s; "+
			"add %s to dialect, then start these pods anew", len(names[mesh]), mesh, r.present().Plugin.Dialects, strings.Join(pods, ", "), more, mesh))
		n.Where = mesh
		found = append(found, n)
	}
	return found
}
