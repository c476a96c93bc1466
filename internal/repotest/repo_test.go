package repotest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/meshcni/meshcni"

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	GoFiles      []string
}

// path is the package's path in the module; "" is the root.
func (p pkg) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// packages lists the packages of all modules in go.work. The go command reads their sources in
// a process of its own, which the test cache does not see; so callers also
// open the sources, by [sources].
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Dir,Imports,TestImports,XTestImports,Deps,GoFiles", "work")
	cmd.Dir = root(t)
	// What is imported on Linux; elsewhere the same or less.
	cmd.Env = append(os.Environ(), "GOOS=linux")
	out, err := cmd.Output()
	require.NoError(t, err, "go list")
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		require.NoError(t, err)
		pkgs = append(pkgs, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

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

// sources reads every Go file, which also makes each an input of the cached
// test result.
func sources(t *testing.T) []source {
	t.Helper()
	top := root(t)
	var all []source
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != top && (name[0] == '.' || name == "testdata" || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
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
	}))
	require.NotEmpty(t, all)
	return all
}

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

// private reports whether a package is nobody's to import: what only tests the
// tree, or serves its own maintenance.
func private(path string) bool {
	return within(path, "internal", "cmd", "examples", "deploy", "e2e", "release", "repair/integration") || strings.Contains(path, "/internal/")
}
