package doctest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/plugin"
)

const troubleshooting = "docs/troubleshooting.md"

// constants are the values of the constants of a type that a package declares. They are read from its source, so that this
// test needs no module but its own.
func constants(t *testing.T, dir, typ string) []string {
	t.Helper()
	var all []string
	for path, text := range sources(t, dir) {
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			declared := ""
			switch t := spec.Type.(type) {
			case *ast.Ident:
				declared = t.Name
			case *ast.SelectorExpr:
				declared = t.X.(*ast.Ident).Name + "." + t.Sel.Name
			}
			if declared == typ {
				for _, v := range spec.Values {
					value, err := strconv.Unquote(v.(*ast.BasicLit).Value)
					require.NoError(t, err)
					all = append(all, value)
				}
			}
			return true
		})
	}
	require.NotEmpty(t, all, "constants of %s in %s", typ, dir)
	return all
}

// TestOutcomes: what the records of decisions say.
func TestOutcomes(t *testing.T) {
	text := read(t, troubleshooting)
	for _, outcome := range plugin.Outcomes() {
		assert.Contains(t, text, "`"+string(outcome)+"`", "%s: outcome", troubleshooting)
	}
}
