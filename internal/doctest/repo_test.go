package doctest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	bin       string // holds the repository's programs, once somebody needs them
	buildOnce sync.Once
)

func TestMain(m *testing.M) {
	var err error
	if bin, err = os.MkdirTemp("", "doctest-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(bin)
	os.Exit(code)
}

// programs builds the repository's programs for the first test that needs them, and returns their directory.
func programs(t *testing.T) string {
	t.Helper()
	buildOnce.Do(func() {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./cmd/...", "./migrate/...")
		build.Dir, build.Env = root(t), append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	return bin
}

// root is the repository's, as an absolute path.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// files lists the repository's files with this ending, below the given folders or everywhere, by their path from the
// root. What is built, what is generated for tests and what is hidden is none of it.
func files(t *testing.T, ending string, below ...string) []string {
	t.Helper()
	top := root(t)
	var all []string
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != top && (name[0] == '.' || name == "testdata" || name == "bin" || name == "dist" || name == "node_modules" || name == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if !strings.HasSuffix(name, ending) {
			return nil
		}
		within := len(below) == 0
		for _, b := range below {
			within = within || rel == b || strings.HasPrefix(rel, b+"/")
		}
		if within {
			all = append(all, rel)
		}
		return nil
	}))
	return all
}

// documented is what users read.
var documented = []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "deploy"}

// read returns a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), path))
	require.NoError(t, err)
	return string(text)
}

// blocksOf returns the blocks of a file of the repository, under its path from the root.
func blocksOf(t *testing.T, path string) []Block {
	t.Helper()
	all, err := Parse(path, read(t, path))
	require.NoError(t, err)
	return all
}

// sources is the text of every Go file that is no test, which also makes each an input of the cached test result: the
// go command reads them in a process of its own, which the test cache does not see.
func sources(t *testing.T, below ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range files(t, ".go", below...) {
		if !strings.HasSuffix(path, "_test.go") {
			all[path] = read(t, path)
		}
	}
	require.NotEmpty(t, all)
	return all
}
