package explain_test

import (
	"testing"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestForgedLines: no text of a pod, its namespace or a configuration makes a line or a column of an explanation.
func TestForgedLines(t *testing.T) {
	for name, change := range map[string]func(*explain.Explanation){
		"whole":   func(x *explain.Explanation) { x.Rules = &ruleset.Ruleset{} },
		"outside": func(x *explain.Explanation) { x.Redirect, x.Refused = nil, nil },
		"in the mesh": func(x *explain.Explanation) {
			x.Redirect, x.Refused, x.Answers, x.Decision.Selected = nil, nil, nil, true
		},
	} {
		visibletest.Check(t, name, change, func(w *visible.Printer, x explain.Explanation) { x.Print(w) })
	}
}
