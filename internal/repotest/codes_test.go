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

// TestCodesHaveEmitters: each code of packages status and statuscode has its row, and something outside of them sets it. The row of a
// public code is looked for by the constant's name, so that one of the same text does not count. No code is written as a text where a
// constant is meant.
func TestCodesHaveEmitters(t *testing.T) {
	declared, rows, emitted := map[string]bool{}, map[string]bool{}, map[string]bool{}
	internal, texts := map[string]string{}, map[string]bool{} // a constant's text; the texts in package status
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		public, ours := s.dir() == "status", s.dir() == "status" || s.dir() == "internal/program/statuscode"
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if id, ok := n.Type.(*ast.Ident); public && ok && id.Name == "Code" {
					declared["status."+n.Names[0].Name] = true
					return false
				}
				if ours && !public {
					internal["statuscode."+n.Names[0].Name] = n.Values[0].(*ast.BasicLit).Value
				}
			case *ast.BasicLit:
				texts[n.Value] = texts[n.Value] || public
			case *ast.Ident:
				if public && strings.HasPrefix(n.Name, "Code") && n.Name != "Code" {
					rows["status."+n.Name] = true
				}
			case *ast.SelectorExpr:
				if id, ok := n.X.(*ast.Ident); !ours && ok {
					emitted[id.Name+"."+n.Sel.Name] = true
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) == 1 {
					id, _ := f.X.(*ast.Ident)
					lit, text := n.Args[0].(*ast.BasicLit)
					assert.False(t, id != nil && id.Name == "status" && f.Sel.Name == "Code" && text, "%s: status.Code(%v): use a constant", s.path, lit)
				}
			}
			return true
		})
	}
	for name, text := range internal {
		declared[name], rows[name] = true, texts[text]
	}
	require.Greater(t, len(declared), 100)
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		assert.True(t, rows[name], "%s has no row", name)
		assert.True(t, emitted[name], "nothing sets %s", name)
	}
}
