package dist

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/release/internal/source"
)

// TestCheckedOut: a release cannot choose which commit it is held against.
func TestCheckedOut(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, "file"), []byte(text), 0o644))
	}
	git("init", "-q")
	write("one")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	first := git("rev-parse", "HEAD")
	write("two")
	git("commit", "-q", "-a", "-m", "two")
	second := git("rev-parse", "HEAD")
	write("three")

	export := filepath.Join(t.TempDir(), "sources")
	at, err := checkedOut(t.Context(), root, record{Stamp: source.Stamp{Commit: second}}, export)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(at, "file"))
	require.NoError(t, err)
	assert.Equal(t, "two", string(text), "not the change that is in no commit")

	at, err = checkedOut(t.Context(), root, record{Stamp: source.Stamp{Commit: second, Modified: true}}, export)
	require.NoError(t, err)
	assert.Equal(t, root, at)

	for _, commit := range []string{first, "", "HEAD", second[:12]} {
		_, err = checkedOut(t.Context(), root, record{Stamp: source.Stamp{Commit: commit}}, export)
		assert.ErrorContains(t, err, "checked out is "+second, commit)
	}
}
