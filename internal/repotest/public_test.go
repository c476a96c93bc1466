package repotest

import (
	"go/ast"
	"go/token"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What the root module promises to whoever imports it. The goal is 32 packages and 800 names with their methods: lower these with each that
// goes, and raise none.
const (
	maxPublicPackages = 32
	maxPublicNames    = 996
)

// TestPublicIsSmall: what is public can never be taken back, so only what an embedder needs is.
func TestPublicIsSmall(t *testing.T) {
	packages, names := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || private(s.dir()) || within(s.dir(), "cmd", "migrate") {
			continue
		}
		packages[s.dir()] = true
		for _, name := range exported(s.file) {
			names[s.dir()+"."+name] = true // a set: some have a file for each system
		}
	}
	assert.LessOrEqual(t, len(packages), maxPublicPackages, "public packages: make internal what no embedder needs")
	assert.LessOrEqual(t, len(names), maxPublicNames, "exported names with methods: take back one that only this module needs")
}

// exported lists a file's exported names, and the exported methods of exported types.
func exported(file *ast.File) (names []string) {
	add := func(receiver string, id *ast.Ident) {
		if id.IsExported() && (receiver == "" || ast.IsExported(receiver)) {
			names = append(names, receiver+"."+id.Name)
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(receiver(d), d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add("", spec.Name)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						add("", id)
					}
				}
			}
		}
	}
	return names
}

// receiver is the name of a method's type; empty: it is a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	x := f.Recv.List[0].Type
	for {
		switch t := x.(type) {
		case *ast.StarExpr:
			x = t.X
		case *ast.IndexExpr:
			x = t.X
		case *ast.IndexListExpr:
			x = t.X
		case *ast.Ident:
			return t.Name
		default:
			return token.ILLEGAL.String()
		}
	}
}
