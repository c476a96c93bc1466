package repotest

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// ownNames are those of our product, which the code has from a meshcni.Identity.
var ownNames = regexp.MustCompile(`meshcni_|MESHCNI_|meshcni-(node|redirect|repair|taint|plugin|system)|meshcni\.io/|kubectl meshcni|run/meshcni`)

// mayNameOurs are files, or directories with all below them, that have such names in strings.
var mayNameOurs = map[string]string{
	"status":           "the rows are written for our own programs; Row.For puts a product's names into them",
	"cmd/meshcni-node": "our own program, which becomes our other one",
	"e2e":              "tests of our chart and programs",
	"release":          "releases our programs",
}

// TestNamesComeFromTheIdentity: whatever the product, no program of it has names of ours. A constant text may, as the argument of
// Identity.Text.
func TestNamesComeFromTheIdentity(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || strings.Contains(s.dir()+"/", "test/") {
			continue
		}
		exception := ""
		for at := range mayNameOurs {
			if within(s.path, at) {
				exception = at
			}
		}
		for pos, text := range stringsOf(s.file) {
			if ownNames.MatchString(text) {
				used[exception] = true
				assert.NotEmpty(t, exception, "%s: %s: take it from a meshcni.Identity", s.fset.Position(pos), text)
			}
		}
	}
	for at := range mayNameOurs {
		assert.True(t, used[at], "%s has none any more", at)
	}
}

// stringsOf are a file's strings, but for its imports and arguments of Identity.Text.
func stringsOf(file *ast.File) map[token.Pos]string {
	all := map[token.Pos]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			return !ok || f.Sel.Name != "Text" || len(n.Args) != 1
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				all[n.Pos()] = n.Value
			}
		}
		return true
	})
	return all
}
