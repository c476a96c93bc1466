//go:build linux

package nodeagent

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/status"
)

// codesIn returns the constants of the type in a file.
func codesIn(t *testing.T, file, typ string) (codes []string) {
	t.Helper()
	parsed, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name := ""
		switch t := v.Type.(type) {
		case *ast.Ident:
			name = t.Name
		case *ast.SelectorExpr:
			name = t.Sel.Name
		}
		if name == typ {
			code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			codes = append(codes, code)
		}
		return true
	})
	require.NotEmpty(t, codes, file)
	return codes
}

// TestEveryNotReadyCodeIsExplained: package status has each code by which an agent is not ready, and no other.
func TestEveryNotReadyCodeIsExplained(t *testing.T) {
	t.Parallel()
	var explained []string
	for _, c := range status.Codes(status.KindReadiness) {
		explained = append(explained, string(c))
	}
	assert.ElementsMatch(t, append(codesIn(t, "../installer/codes.go", "Code"), codesIn(t, "notready.go", "Code")...), explained)
}
