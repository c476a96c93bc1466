package repotest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pinned is an action of somebody else, by the commit that it is, with its version for people.
var pinned = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

// TestActionsArePinned: a tag can be moved to other code, which would then make the release.
func TestActionsArePinned(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", ".github", "workflows", "*.yml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	files = append(files, filepath.Join("..", "..", "examples", "ci", "check-manifests.yml")) // which people copy
	commits := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			_, action, uses := strings.Cut(line, "uses:")
			action = strings.TrimSpace(action)
			if !uses || strings.HasPrefix(action, "./") { // of this repository
				continue
			}
			assert.Regexp(t, pinned, action, "%s", filepath.Base(file))
			name, commit, _ := strings.Cut(action, "@")
			if commits[name] == "" {
				commits[name] = commit
			}
			assert.Equal(t, commits[name], commit, "%s of %s", name, filepath.Base(file))
		}
	}
}
