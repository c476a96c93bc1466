package repotest

import (
	"go/ast"
	"go/doc"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxLines is the length above which a file has more than one concept.
const maxLines = 600

func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		assert.LessOrEqual(t, s.lines, maxLines, "%s: split it by concept", s.path)
	}
}

// TestPackageComments: each package says what it is for, in one place.
func TestPackageComments(t *testing.T) {
	comments := map[string][]string{}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		if _, ok := comments[s.dir()]; !ok {
			comments[s.dir()] = nil
		}
		if s.file.Doc != nil {
			comments[s.dir()] = append(comments[s.dir()], s.file.Doc.Text())
			name := s.file.Name.Name
			want := "Package " + name + " "
			if name == "main" {
				want = "Command " + filepath.Base(s.dir()) + " "
			}
			assert.True(t, strings.HasPrefix(s.file.Doc.Text(), want), "%s: the package comment does not begin with %q", s.path, want)
		}
	}
	for dir, docs := range comments {
		assert.Len(t, docs, 1, "package %q needs exactly one package comment", dir)
	}
}

// TestNoSilentSkips: a test that cannot run says what is missing, and fails
// where CI=true. netnstest.Require does both, so only it skips.
func TestNoSilentSkips(t *testing.T) {
	for _, s := range sources(t) {
		if within(s.dir(), "netnsexec/netnstest") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				switch sel.Sel.Name {
				case "Skip", "Skipf", "SkipNow":
					assert.Fail(t, "skips by itself; call netnstest.Require", "%s", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

var meshes = regexp.MustCompile(`(?i)istio|linkerd|consul|kuma|envoy`)

// TestNoMeshInTheEngine: meshes are data. Comments and tests may name them; code may not, outside the dialects and what
// chooses among dialects.
func TestNoMeshInTheEngine(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() || !within(s.dir(), "selection", "redirect", "netnsexec", "conflist", "installer/internal") && s.dir() != "dialect" ||
			strings.HasSuffix(s.file.Name.Name, "test") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				assert.NotRegexp(t, meshes, n.Name, "%s names a mesh", s.fset.Position(n.Pos()))
			case *ast.BasicLit:
				assert.NotRegexp(t, meshes, n.Value, "%s names a mesh", s.fset.Position(n.Pos()))
			}
			return true
		})
	}
}

// TestExamples: each public package has an Example, and those of values show their output. Command lines have --help instead.
func TestExamples(t *testing.T) {
	examples := map[string][]*doc.Example{}
	names := map[string]string{}
	for _, s := range sources(t) {
		if s.isTest() {
			examples[s.dir()] = append(examples[s.dir()], doc.Examples(s.file)...)
		} else {
			names[s.dir()] = s.file.Name.Name
		}
	}
	for dir, name := range names {
		if name == "main" || strings.HasSuffix(name, "cmd") || private(dir) || dir == "" {
			continue
		}
		assert.NotEmpty(t, examples[dir], "package %q has no Example", dir)
	}
	for _, dir := range values {
		shown := false
		for _, e := range examples[dir] {
			shown = shown || e.Output != ""
		}
		assert.True(t, shown, "no Example of package %s shows its output", dir)
	}
}

// TestNothingLeftToDo: work that is left is an issue, not a comment.
func TestNothingLeftToDo(t *testing.T) {
	left := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	for _, s := range sources(t) {
		for i, line := range strings.Split(s.text, "\n") {
			assert.False(t, left.MatchString(line), "%s:%d: %s", s.path, i+1, line)
		}
	}
}

func TestFirstPage(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		return string(b)
	}
	assert.Contains(t, read("LICENSE"), "Apache License")
	readme := read("README.md")
	for _, want := range []string{"make demo", "make test", "LICENSE"} {
		assert.True(t, strings.Contains(readme, want), "README.md lacks %q", want)
	}
	assert.True(t, strings.Contains(readme, exampleBody(t)), "README.md shows other code than the Example of the root package")
	for _, p := range packages(t) {
		if path := p.path(); p.Name != "main" && path != "" && !private(path) {
			assert.True(t, strings.Contains(read("doc.go"), path), "doc.go, the map, does not show package %s", path)
			assert.True(t, strings.Contains(readme, "`"+path+"`"), "README.md does not name package %s", path)
		}
	}
}

// exampleBody is the body of the root package's first Example, as README.md
// indents it.
func exampleBody(t *testing.T) string {
	t.Helper()
	for _, s := range sources(t) {
		if s.path != "example_test.go" {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "Example" {
				body := s.text[s.fset.Position(f.Body.Lbrace).Offset+1 : s.fset.Position(f.Body.Rbrace).Offset]
				code, _, _ := strings.Cut(body, "// Output:")
				return strings.TrimSpace(strings.ReplaceAll(code, "\n\t", "\n"))
			}
		}
	}
	require.Fail(t, "the root package has no Example")
	return ""
}

// TestNoTemplatesInPrograms: text/template calls methods by name, so the linker keeps every exported method. cobra links it
// only if a template is set.
func TestNoTemplatesInPrograms(t *testing.T) {
	setter := regexp.MustCompile(`\.Set(Version|Usage|Help)Template\(`)
	for _, s := range sources(t) {
		if !s.isTest() && !within(s.dir(), "release", "e2e") {
			assert.False(t, setter.MatchString(s.text), "%s sets a template, which makes the program 6 MB larger", s.path)
		}
	}
}
