package repotest

import (
	"go/ast"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestConditionsAreWhole: the head of an if assigns only what its condition reads; another assignment is a line of its own, which a reader sees.
func TestConditionsAreWhole(t *testing.T) {
	for _, s := range sources(t) {
		elses := map[ast.Stmt]bool{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			i, ok := n.(*ast.IfStmt)
			if !ok {
				return true
			}
			elses[i.Else] = true
			assigned, ok := i.Init.(*ast.AssignStmt)
			if !ok || elses[i] {
				return true
			}
			names := map[string]bool{}
			for _, left := range assigned.Lhs {
				for _, name := range identifiers(left) {
					names[name] = true
				}
			}
			read := false
			for _, name := range identifiers(i.Cond) {
				read = read || names[name]
			}
			assert.True(t, read, "%s: the condition reads nothing that its if assigns: assign it before", s.fset.Position(i.Pos()))
			return true
		})
	}
}

// maxNamedOf is how many parameters, variables and functions are still called "of", which says nothing of what they are. The goal is none:
// lower it with each that gets a name, and raise it never.
const maxNamedOf = 8

func TestNothingIsNamedOf(t *testing.T) {
	var places []string
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name == "of" && id.Obj != nil && id.Obj.Pos() == id.Pos() {
				places = append(places, s.fset.Position(id.Pos()).String())
			}
			return true
		})
	}
	assert.LessOrEqual(t, len(places), maxNamedOf, "say what they are: %q", places)
}

var twins = regexp.MustCompile(`^\w+ (is|are) (that|those) of \[?[\w.*]+\]?\.?\n?$`)

// TestCommentsSayMore: "X is that of Y" sends a reader elsewhere; say what X implements or does.
func TestCommentsSayMore(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Doc != nil {
				assert.False(t, twins.MatchString(f.Doc.Text()), "%s: %s", s.fset.Position(f.Pos()), f.Doc.Text())
			}
		}
	}
}

// identifiers lists the names in an expression.
func identifiers(x ast.Expr) (names []string) {
	ast.Inspect(x, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}
