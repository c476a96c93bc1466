package source_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/release/internal/source"
)

// sources makes a tree that could be released.
func sources(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, root, "go.mod", "module github.com/meshcni/meshcni\n\ngo 1.26.0\n")
	write(t, root, "release/go.mod", "module github.com/meshcni/meshcni/release\n\ngo 1.26.0\n\ntoolchain go1.26.8\n")
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	file := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

// git runs it with no settings but these, at a time that is known.
func git(t *testing.T, root string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_DATE=2020-02-02T02:02:02Z", "GIT_COMMITTER_DATE=2020-02-02T02:02:02Z")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func checkout(t *testing.T) string {
	t.Helper()
	root := sources(t)
	git(t, root, "init", "-q")
	git(t, root, "add", ".")
	git(t, root, "commit", "-q", "-m", "one")
	return root
}

var committed = time.Date(2020, 2, 2, 2, 2, 2, 0, time.UTC)

func TestVersions(t *testing.T) {
	for name, tt := range map[string]struct {
		do       func(t *testing.T, root string)
		o        source.Options
		version  string // a regular expression
		modified bool
		time     time.Time
	}{
		"tag": {
			do:      func(t *testing.T, root string) { git(t, root, "tag", "v1.2.3") },
			version: `v1\.2\.3`, time: committed,
		},
		"annotated tag": {
			do:      func(t *testing.T, root string) { git(t, root, "tag", "-a", "-m", "x", "v1.2.3-rc.1") },
			version: `v1\.2\.3-rc\.1`, time: committed,
		},
		"after a tag": {
			do: func(t *testing.T, root string) {
				git(t, root, "tag", "v1.2.3")
				git(t, root, "commit", "-q", "--allow-empty", "-m", "two")
			},
			version: `v1\.2\.3-1-g[0-9a-f]{12}`, time: committed,
		},
		"no tag": {version: `v0\.0\.0-1-g[0-9a-f]{12}`, time: committed},
		"a tag that is no version": {
			do:      func(t *testing.T, root string) { git(t, root, "tag", "nightly") },
			version: `v0\.0\.0-1-g[0-9a-f]{12}`, time: committed,
		},
		"changed": {
			do: func(t *testing.T, root string) {
				git(t, root, "tag", "v1.2.3")
				write(t, root, "go.mod", "module github.com/meshcni/meshcni\n\ngo 1.27.0\n")
			},
			version: `v1\.2\.3-dirty`, modified: true, time: committed,
		},
		"a file more": {
			do:      func(t *testing.T, root string) { write(t, root, "more.go", "package meshcni\n") },
			version: `v0\.0\.0-1-g[0-9a-f]{12}-dirty`, modified: true, time: committed,
		},
		"given": {o: source.Options{Version: "v2.0.0", Epoch: "7"}, version: `v2\.0\.0`, time: time.Unix(7, 0).UTC()},
	} {
		t.Run(name, func(t *testing.T) {
			root := checkout(t)
			if tt.do != nil {
				tt.do(t, root)
			}
			tree, err := source.Open(t.Context(), root, tt.o)
			require.NoError(t, err)
			assert.Regexp(t, "^"+tt.version+"$", tree.Version)
			assert.Equal(t, tt.modified, tree.Modified)
			assert.Equal(t, tt.time, tree.Time())
			assert.Regexp(t, "^[0-9a-f]{40}$", tree.Commit)
			assert.Equal(t, "go1.26.8", tree.Go)
			assert.Equal(t, tt.modified, tree.Revision() == tree.Commit+"-dirty")
			assert.Equal(t, "v"+tree.Number(), tree.Version)
		})
	}
}

func TestNoCheckout(t *testing.T) {
	root := sources(t)
	_, err := source.Open(t.Context(), root, source.Options{})
	assert.ErrorContains(t, err, "give --version")
	tree, err := source.Open(t.Context(), root, source.Options{Version: "v1.0.0"})
	require.NoError(t, err)
	assert.Equal(t, time.Unix(0, 0).UTC(), tree.Time())
	assert.Empty(t, tree.Revision())
	for name, o := range map[string]source.Options{
		"no v":      {Version: "1.0.0"},
		"build":     {Version: "v1.0.0+x"},
		"zero":      {Version: "v01.0.0"},
		"a flag":    {Version: "v1.0.0 -X a=b"},
		"hash":      {Version: "v1.0.0", Commit: "--output=/"},
		"epoch":     {Version: "v1.0.0", Epoch: "today"},
		"in future": {Version: "v1.0.0", Epoch: "-1"},
	} {
		_, err := source.Open(t.Context(), root, o)
		assert.Error(t, err, name)
	}
	_, err = source.Find(filepath.Join(root, "release"))
	assert.NoError(t, err)
	_, err = source.Find(filepath.Dir(root))
	assert.ErrorContains(t, err, "is module github.com/meshcni/meshcni")
}

// TestExport: what was committed, and nothing of what is there besides.
func TestExport(t *testing.T) {
	root := checkout(t)
	tree, err := source.Open(t.Context(), root, source.Options{})
	require.NoError(t, err)
	write(t, root, "go.mod", "changed since")
	write(t, root, "more.go", "package meshcni\n")
	to := filepath.Join(t.TempDir(), "export")
	require.NoError(t, source.Export(t.Context(), root, tree.Commit, to))
	text, err := os.ReadFile(filepath.Join(to, "go.mod"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "go 1.26.0")
	entries, err := os.ReadDir(to)
	require.NoError(t, err)
	assert.Len(t, entries, 2, "go.mod and release")
	assert.False(t, source.IsCheckout(to))
	assert.ErrorContains(t, source.Export(t.Context(), root, "1111111111111111111111111111111111111111", t.TempDir()), "git read-tree")
	assert.ErrorContains(t, source.Export(t.Context(), root, "--help", t.TempDir()), "not the hash of a commit")
}
