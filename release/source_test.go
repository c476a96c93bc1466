package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sources makes a tree that could be released.
func sources(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, root, "go.mod", "module github.com/meshcni/meshcni\n\ngo 1.26.0\n")
	write(t, root, "release/go.mod", "module github.com/meshcni/meshcni/release\n\ngo 1.26.0\n\ntoolchain go1.26.8\n")
	write(t, root, "deploy/helm/meshcni/Chart.yaml", "version: 1.2.3\nappVersion: v1.2.3\n")
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

// TestComplete: version, commit and time are what the flags say, else the chart's and git's.
func TestComplete(t *testing.T) {
	committed := time.Date(2020, 2, 2, 2, 2, 2, 0, time.UTC)
	checkout := func(t *testing.T, root string) {
		git(t, root, "init", "-q")
		git(t, root, "add", ".")
		git(t, root, "commit", "-q", "-m", "one")
	}
	for name, tt := range map[string]struct {
		do      func(t *testing.T, root string)
		given   source
		epoch   string
		version string
		commit  string // a regular expression
		time    time.Time
		err     string
	}{
		"checkout": {do: checkout, version: "v1.2.3", commit: "[0-9a-f]{40}", time: committed},
		"changed": {do: func(t *testing.T, root string) {
			checkout(t, root)
			write(t, root, "more.go", "package meshcni\n")
		}, version: "v1.2.3", commit: "[0-9a-f]{40}-dirty", time: committed},
		"given": {
			do: checkout, given: source{version: "v2.0.0", commit: "0123456789ab"}, epoch: "7",
			version: "v2.0.0", commit: "0123456789ab", time: time.Unix(7, 0).UTC(),
		},
		"no checkout": {version: "v1.2.3", time: time.Unix(0, 0).UTC()},
		"epoch":       {epoch: "today", err: `SOURCE_DATE_EPOCH is "today"`},
		"past":        {epoch: "-1", err: `SOURCE_DATE_EPOCH is "-1"`},
		"no toolchain": {do: func(t *testing.T, root string) {
			write(t, root, "release/go.mod", "module m\n")
		}, err: "release/go.mod has no line like"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.given.root = sources(t)
			if tt.do != nil {
				tt.do(t, tt.given.root)
			}
			err := tt.given.complete(t.Context(), tt.epoch)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.version, tt.given.version)
			assert.Regexp(t, "^"+tt.commit+"$", tt.given.commit)
			assert.Equal(t, tt.time, tt.given.time)
			assert.Equal(t, "go1.26.8", tt.given.toolchain)
		})
	}
}
