package ruleset_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestForgedLines: no name, comment or rule of a kernel makes a line or a column.
func TestForgedLines(t *testing.T) {
	type rules struct{ All ruleset.Live }
	for name, change := range map[string]func(*rules){"ours": nil, "not ours": func(r *rules) { r.All[0].Ours = true }} {
		visibletest.Check(t, name, change, func(w *visible.Printer, r rules) {
			var b strings.Builder
			assert.NoError(t, r.All.Write(&b))
			visibletest.Lines(t, name, b.String())
			w.Text(b.String())
		})
	}
}
