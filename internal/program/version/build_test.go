package version_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// build compiles all programs into a directory of their own. Whatever the
// machine's go command does with checkouts, here it records none unless asked.
func build(t *testing.T, dir string, flags ...string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-o", bin}, flags...), "./cmd/...")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

func goSuffix() string {
	return regexp.QuoteMeta(runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")")
}

// TestCheckout builds a program of this module's path in a git checkout: the
// go command's own record, of a commit, a change, and a tag.
func TestCheckout(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module github.com/meshcni/meshcni\n\ngo 1.26\n")
	text, err := os.ReadFile("version.go")
	require.NoError(t, err)
	write(t, dir, "internal/program/version/version.go", string(text))
	write(t, dir, "cmd/show/main.go", `package main

import "github.com/meshcni/meshcni/internal/program/version"

func main() { print(version.String(), "\n", version.Long(), "\n") }
`)
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "one")
	show := func() []string {
		bin := build(t, dir, "-buildvcs=true")
		out, err := exec.Command(filepath.Join(bin, "show")).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.Split(string(out), "\n")
	}
	const commit = `\(commit [0-9a-f]{12}`
	const date = `2026-11-21T09:00:00Z, `
	got := show()
	assert.Regexp(t, `^v0\.0\.0-20261121090000-[0-9a-f]{12}$`, got[0])
	assert.Regexp(t, `^v0\.0\.0-20261121090000-[0-9a-f]{12} `+commit+`, `+date+goSuffix()+`$`, got[1])

	write(t, dir, "cmd/show/more.go", "package main\n")
	got = show()
	assert.Regexp(t, `\+dirty$`, got[0])
	assert.Regexp(t, `\+dirty `+commit+`, modified, `+date+goSuffix()+`$`, got[1])

	require.NoError(t, os.Remove(filepath.Join(dir, "cmd/show/more.go")))
	git(t, dir, "tag", "v1.2.3")
	got = show()
	assert.Equal(t, "v1.2.3", got[0])
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// git runs git without anybody's settings, at a fixed time.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
		"GIT_AUTHOR_DATE=2026-11-21T09:00:00Z", "GIT_COMMITTER_DATE=2026-11-21T09:00:00Z")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %v: %s", args, out)
}
