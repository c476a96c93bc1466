package repotest

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCodesHaveEmitters: each code of package status has its row, which is looked for by the constant's name so that one of the same text
// does not count, and something outside of the package sets it. No code is written as a text where a constant is meant.
func TestCodesHaveEmitters(t *testing.T) {
	declared, rows, emitted := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		ours := s.dir() == "status"
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if of, ok := n.Type.(*ast.Ident); ours && ok && of.Name == "Code" {
					declared[n.Names[0].Name] = true
					return false
				}
			case *ast.Ident:
				if ours && strings.HasPrefix(n.Name, "Code") && n.Name != "Code" {
					rows[n.Name] = true
				}
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); !ours && ok && of.Name == "status" {
					emitted[n.Sel.Name] = true
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) == 1 {
					of, _ := f.X.(*ast.Ident)
					lit, text := n.Args[0].(*ast.BasicLit)
					assert.False(t, of != nil && of.Name == "status" && f.Sel.Name == "Code" && text, "%s: status.Code(%v): use a constant", s.path, lit)
				}
			}
			return true
		})
	}
	require.Greater(t, len(declared), 100)
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		assert.True(t, rows[name], "status.%s has no row", name)
		assert.True(t, emitted[name], "nothing sets status.%s", name)
	}
}
