//go:build linux

package nodecmd

import (
	"testing"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/status"
)

// TestForgedLines: no text of a pod makes a line or a column of what the node's agent prints.
func TestForgedLines(t *testing.T) {
	drifted := func(s *nodeagent.Status) {
		for i := range s.Pods {
			s.Pods[i].State = status.StateDrifted
		}
	}
	visibletest.Check(t, "status", drifted, func(w *visible.Printer, s nodeagent.Status) { showStatus(w, s) })
	visibletest.Check(t, "pods", nil, func(w *visible.Printer, s nodeagent.Status) { showPods(w, s) })
}
