package liverules_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/cmd/internal/liverules"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/internal/visible/visibletest"
)

// TestForgedLines: no name, comment or rule of a kernel makes a line or a column.
func TestForgedLines(t *testing.T) {
	type rules struct{ All []liverules.Rule }
	for name, change := range map[string]func(*rules){"ours": nil, "not ours": func(r *rules) { r.All[0].Ours = true }} {
		visibletest.Check(t, name, change, func(w *visible.Printer, r rules) { assert.NoError(t, liverules.Print(w, r.All)) })
	}
}
