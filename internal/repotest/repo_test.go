package repotest

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
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
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string

	module string // the directory of its module, from the root
}

// path is the package's path in the module; "" is the root.
func (p pkg) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// modules are the directories of the repository's modules, from the root, which is ".".
func modules(t *testing.T) (dirs []string) {
	t.Helper()
	for _, pattern := range []string{"go.mod", "*/go.mod", "*/*/go.mod"} {
		found, err := fs.Glob(os.DirFS(root(t)), pattern)
		require.NoError(t, err)
		for _, file := range found {
			dirs = append(dirs, path.Dir(file))
		}
	}
	return dirs
}

// packages lists the packages of some modules, as Linux has them. The go command reads their sources in a process of its
// own, which the test cache does not see, so callers also open the sources, with [sources].
func packages(t *testing.T, modules ...string) (pkgs []pkg) {
	t.Helper()
	for _, module := range modules {
		cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Imports,TestImports,XTestImports,Deps", "./...")
		cmd.Dir = filepath.Join(root(t), module)
		cmd.Env = append(os.Environ(), "GOOS=linux")
		out, err := cmd.Output()
		require.NoError(t, err, "go list")
		for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
			p := pkg{module: module}
			require.NoError(t, dec.Decode(&p))
			pkgs = append(pkgs, p)
		}
	}
	return pkgs
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
