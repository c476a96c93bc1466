//go:build linux

package nodeagent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/mesh"
)

// servedBy reports whether one of the plugins beside ours redirects the pods of a dialect.
func servedBy(neighbours []installer.Neighbour, meshes mesh.List, dialect string) bool {
	types := meshes.Of(dialect, nil).PluginTypes
	return slices.ContainsFunc(neighbours, func(n installer.Neighbour) bool { return slices.Contains(types, n.Plugin) })
}

const (
	// maxOthers bounds the pods of a mesh that a warning names.
	maxOthers = 3
	// otherEvery is the interval at which the agent looks for pods to tell the node's object of, and otherAgain that at which it tells of the same
	// mesh: whoever makes pods decides of which mesh they look, and gets no more events by making more.
	otherEvery, otherAgain = 10 * time.Second, 30 * time.Minute
)

// otherDialects returns a warning for each mesh that has pods on the node and is not configured.
func (r *repairer) otherDialects() (texts []string) {
	for _, text := range r.others() {
		texts = append(texts, noticeOtherDialect+": "+text)
	}
	slices.Sort(texts)
	return texts
}

// others returns what there is to say of each mesh that has pods on the node and is not configured, by its name.
func (r *repairer) others() map[string]string {
	names := map[string][]string{}
	for _, p := range r.pods() {
		if p.Reason == statuscode.OtherDialect {
			names[p.Dialect] = append(names[p.Dialect], p.Namespace+"/"+p.Name)
		}
	}
	texts := map[string]string{}
	for mesh, pods := range names {
		more := ""
		if n := len(pods) - maxOthers; n > 0 {
			pods, more = pods[:maxOthers], fmt.Sprintf(" and %d more", n)
		}
		texts[mesh] = fmt.Sprintf("%d of the node's pods are of mesh %s, which the plugin is not configured for (dialect %s), and their traffic bypasses the mesh: %s%s; "+
			"add %s to dialect, then start these pods anew", len(names[mesh]), mesh, r.present().Plugin.Dialects, strings.Join(pods, ", "), more, mesh)
	}
	return texts
}

// tellOtherDialects tells the node's object of such meshes, until the context ends.
func (r *repairer) tellOtherDialects(ctx context.Context, notify func(installer.Notice)) error {
	told := map[string]time.Time{}
	for {
		texts := r.others()
		for _, mesh := range slices.Sorted(maps.Keys(texts)) {
			if at, known := told[mesh]; known && time.Since(at) < otherAgain {
				continue
			}
			told[mesh] = time.Now()
			r.log.Warn("pods of a mesh that is not configured bypass it", slog.String("dialect", mesh), slog.String("detail", texts[mesh]))
			notify(installer.Notice{Code: noticeOtherDialect, Warning: true, Text: texts[mesh]})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(otherEvery):
		}
	}
}
