package importtest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/meshcni/meshcni"

var update = flag.Bool("update", false, "write the lists of modules and the tables in docs/embedding.md anew")

// goCommand runs the go command outside of the workspace, for Linux, and returns its standard output.
func goCommand(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	return goIn(t, dir, nil, args...)
}

func goIn(t *testing.T, dir string, env []string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, slices.Concat(os.Environ(), []string{"GOWORK=off", "GOOS=linux", "GOFLAGS="}, env)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "go %s: %s", strings.Join(args, " "), &stderr)
	return out
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	require.NoError(t, err)
	return dir
}

// TestOutside: a module that imports one package downloads the modules that are built with it and no others, requires hardly any other, and
// has at most this many lines of go.sum. The files in testdata name these modules: what only the agent needs is in none but the agent's.
func TestOutside(t *testing.T) {
	for name, sums := range map[string]int{
		"redirect": 12, "conflist": 10, "dialect": 110, "plugin": 128, "installer": 82, "repair": 187, "nodeproxy": 191, "nodeagent": 199,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := outside(t, name)
			sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
			require.NoError(t, err)
			assert.LessOrEqual(t, bytes.Count(sum, []byte("\n")), sums, "lines of go.sum")
			golden := filepath.Join("testdata", name+".modules")
			built := built(t, dir)
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(built), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), built, "if it must be so: go test ./internal/testing/importtest -update")
			assert.Equal(t, built, downloaded(t, dir))
			var mod struct{ Require []struct{ Path string } }
			require.NoError(t, json.Unmarshal(goCommand(t, dir, "mod", "edit", "-json"), &mod))
			most := strings.Count(built, "\n") + 1 // what is built, and ours
			if built != "" {
				most++ // github.com/kr/text, which only tests of these need
			}
			assert.LessOrEqual(t, len(mod.Require), most, "requirements")
		})
	}
}

// built are the modules of others that have a package which is built, one a line.
func built(t *testing.T, dir string) string {
	t.Helper()
	list := string(goCommand(t, dir, "list", "-deps", "-f", "{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}}{{end}}{{end}}", "./..."))
	lines := slices.Compact(slices.Sorted(strings.Lines(list)))
	return strings.TrimPrefix(strings.Join(lines, ""), "\n")
}

// downloaded are the modules of others whose code a machine fetches that has none yet, one a line.
func downloaded(t *testing.T, dir string) string {
	t.Helper()
	cache, proxy := t.TempDir(), "file://"+strings.TrimSpace(string(goCommand(t, dir, "env", "GOMODCACHE")))+"/cache/download"
	goIn(t, dir, []string{"GOMODCACHE=" + cache, "GOPROXY=" + proxy, "GOSUMDB=off", "GOFLAGS=-modcacherw"}, "list", "-deps", "./...")
	list := map[string]bool{}
	require.NoError(t, fs.WalkDir(os.DirFS(cache), ".", func(path string, _ fs.DirEntry, err error) error {
		if from, file, ok := strings.Cut(strings.TrimPrefix(path, "cache/download/"), "/@v/"); ok && strings.HasSuffix(file, ".zip") {
			list[from+"\n"] = true
		}
		return err
	}))
	return strings.Join(slices.Sorted(maps.Keys(list)), "")
}

// outside makes a module that imports one package of the tree.
func outside(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root(t), "go.sum"))
	require.NoError(t, err)
	for file, text := range map[string]string{
		"go.mod": "module outside.example\n\ngo 1.25.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root(t) + "\n",
		"go.sum": string(sums),
		"o.go":   "package outside\n\nimport _ \"" + module + "/" + name + "\"\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	goCommand(t, dir, "mod", "tidy")
	return dir
}

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath string
	Name       string
	Standard   bool
	DepOnly    bool
	Deps       []string
	Module     struct{ Path string }
}

// modules are those that get a version, and what each is for.
var modules = [][2]string{{".", "all libraries"}, {"cmd", "the programs and their command lines"}, {"migrate", "kubectl meshcni migrate"}}

// TestTables: docs/embedding.md says what versions each module needs, and how many modules of others each public package brings along.
func TestTables(t *testing.T) {
	var packages, versions strings.Builder
	versions.WriteString("| module | for | Go | k8s.io |\n|---|---|---|---|\n")
	packages.WriteString("| modules | packages |\n|---|---|\n")
	brings := map[int][]string{}
	for _, m := range modules {
		text, err := os.ReadFile(filepath.Join(root(t), m[0], "go.mod"))
		require.NoError(t, err)
		v := regexp.MustCompile(`(?s)\ngo (\d+\.\d+).*\tk8s\.io/api (\S+)`).FindSubmatch(text)
		require.NotNil(t, v, m[0])
		fmt.Fprintf(&versions, "| `%s` | %s | %s | %s |\n", path.Join(module, m[0]), m[1], v[1], v[2])
		if m[0] == "." {
			readme, err := os.ReadFile(filepath.Join(root(t), "README.md"))
			require.NoError(t, err)
			assert.Contains(t, string(readme), fmt.Sprintf("Go %s and k8s.io %s or newer", v[1], bytes.TrimSuffix(v[2], []byte(".0"))))
		}
		addPackages(t, brings, filepath.Join(root(t), m[0]))
	}
	for _, n := range slices.Sorted(maps.Keys(brings)) {
		fmt.Fprintf(&packages, "| %d | %s |\n", n, strings.Join(brings[n], " "))
	}
	page := filepath.Join(root(t), "docs", "embedding.md")
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	want := string(text)
	for name, table := range map[string]string{"modules": versions.String(), "packages": packages.String()} {
		mark := regexp.MustCompile("(?s)(<!-- " + name + `: go test \./internal/testing/importtest -update -->\n).*?(<!-- end of ` + name + " -->)")
		require.Regexp(t, mark, want)
		want = mark.ReplaceAllString(want, "${1}"+table+"${2}")
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	assert.Equal(t, want, string(text), "to write it anew: go test ./internal/testing/importtest -update")
}

// private are packages that are not for others to import; see "The Go API" in docs/stability.md.
var private = regexp.MustCompile(`/internal/|/playground/|/repair/integration/`)

// addPackages adds the module's public packages under the number of modules of others that are built with each.
func addPackages(t *testing.T, brings map[int][]string, dir string) {
	t.Helper()
	packages := map[string]listed{}
	for dec := json.NewDecoder(bytes.NewReader(goCommand(t, dir, "list", "-deps", "-json=ImportPath,Name,Standard,DepOnly,Deps,Module", "./..."))); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		packages[p.ImportPath] = p
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		p := packages[name]
		if p.DepOnly || p.Name == "main" || private.MatchString(name+"/") {
			continue
		}
		modules := map[string]bool{}
		for _, d := range p.Deps {
			if d := packages[d]; !d.Standard && d.Module.Path != module && !strings.HasPrefix(d.Module.Path, module+"/") {
				modules[d.Module.Path] = true
			}
		}
		brings[len(modules)] = append(brings[len(modules)], "`"+cmp.Or(strings.TrimPrefix(strings.TrimPrefix(name, module), "/"), "meshcni")+"`")
	}
}
