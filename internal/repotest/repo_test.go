package repotest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/meshcni/meshcni"

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath   string
	Name         string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	Module       struct{ Path string }
}

// module is the path of the package's module below the root's, which is ".".
func (p pkg) module() string {
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(p.Module.Path, module), "/"), ".")
}

// path is the package's path in the module; "" is the root.
func (p pkg) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// packages lists the packages of all modules in go.work, as Linux has them.
func packages(t *testing.T) []pkg {
	t.Helper()
	sources(t) // The go command is a process of its own, whose reading the test cache does not see.
	all, err := listOnce()
	require.NoError(t, err)
	return all
}

var listOnce = sync.OnceValues(func() (pkgs []pkg, err error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Module,Name,Imports,TestImports,XTestImports,Deps", "work")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
	return pkgs, nil
})

// root is the repository's.
const root = "../.."

// source is one Go file of the repository, tests included.
type source struct {
	path  string // slash-separated, from the root
	text  string
	fset  *token.FileSet
	file  *ast.File
	lines int
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) dir() string {
	if i := strings.LastIndexByte(s.path, '/'); i >= 0 {
		return s.path[:i]
	}
	return ""
}

// sources reads every Go file, which also makes each an input of the cached test result.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := readOnce()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

var readOnce = sync.OnceValues(func() (all []source, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (name[0] == '.' || name == "testdata" || name == "bin" || name == "dist" || name == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(rel), string(text), fset, file, strings.Count(string(text), "\n")})
		return nil
	})
	return all, err
})

// within reports whether a package path is one of the trees ("redirect" holds
// "redirect/ruleset").
func within(path string, trees ...string) bool {
	for _, tree := range trees {
		if path == tree || strings.HasPrefix(path, tree+"/") {
			return true
		}
	}
	return false
}

// private reports whether a package is not for others to import: what only tests the tree, or serves its maintenance. Of
// cmd the command lines are public, such as cmd/nodecmd.
func private(path string) bool {
	return within(path, "internal", "cmd", "examples", "deploy", "e2e", "release", "playground", "migrate", "repair/integration") && !strings.HasSuffix(path, "cmd") ||
		strings.Contains(path, "/internal/")
}
