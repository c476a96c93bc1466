package migration_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/migrate/internal/migration"
)

// TestForgedLines: no text of a cluster makes a line of the report.
func TestForgedLines(t *testing.T) {
	// The values are YAML, which has quotes of its own.
	visibletest.Check(t, "report", func(r *migration.Report) { r.Plan.Values = nil }, func(w *visible.Printer, r migration.Report) { assert.NoError(t, r.Print(w)) })
}

// TestForgedPage: no text of a cluster is an element of the page, or turns what stands beside it around.
func TestForgedPage(t *testing.T) {
	page := func(text string) string {
		var r migration.Report
		visibletest.Fill(&r, text)
		var b strings.Builder
		require.NoError(t, r.HTML(&b))
		return b.String()
	}
	plain := page("x")
	hostile := page(visibletest.Hostile + `</code></pre></style><script>alert(1)</script><img src=x onerror=alert(1)>" onload="x`)
	assert.Equal(t, strings.Count(plain, "<"), strings.Count(hostile, "<"), "elements")
	assert.Equal(t, strings.Count(plain, `"`), strings.Count(hostile, `"`), "attributes")
	assert.Contains(t, hostile, "FORGED")
	for _, r := range hostile {
		require.True(t, r == '\n' || r == '\t' || strconv.IsPrint(r), "%U", r)
	}
}
