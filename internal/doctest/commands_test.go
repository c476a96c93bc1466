package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestCommands runs what the documentation tells its readers to type, but for what needs a cluster, and compares what is
// printed with what the documentation says.
func TestCommands(t *testing.T) {
	sources(t) // for the test cache
	byFile := map[string][]Block{}
	for _, file := range files(t, ".md") {
		for _, b := range blocksOf(t, file) {
			if b.Tag == Local || b.Tag == Root {
				byFile[file] = append(byFile[file], b)
			}
		}
	}
	require.NotEmpty(t, byFile)
	path := "PATH=" + programs(t) + string(os.PathListSeparator) + os.Getenv("PATH") + ":/usr/sbin:/sbin"
	for file, blocks := range byFile {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			env := []string{path, "TMPDIR=" + t.TempDir(), "CI=true"}
			for _, b := range blocks {
				t.Run(strings.TrimPrefix(b.String(), file), func(t *testing.T) {
					if b.Tag == Root {
						netnstest.Require(t, netnstest.Root)
					}
					out, err := b.Run(t.Context(), root(t), env...)
					require.NoError(t, err, "%s", out)
				})
			}
		})
	}
}

// command is how a line begins that people type.
var command = regexp.MustCompile(`^\s*(\$ |sudo |make\b|go (run|test|build|install|doc)\b|kubectl |helm |ctr |crictl |nsenter |curl |meshcni(-\w+)? )`)

// TestNoCommandUnseen: a command that nobody runs says why not.
func TestNoCommandUnseen(t *testing.T) {
	for _, file := range files(t, ".md") {
		inBlock := map[int]bool{}
		for _, b := range blocksOf(t, file) {
			for i := range strings.Count(b.Text, "\n") + 2 {
				inBlock[b.Line+i] = true
			}
			if b.Lang == "sh" {
				assert.True(t, b.Tag != "" || b.NotRun != "", "%s: neither run nor said why not", b)
				continue
			}
			assert.NotContains(t, []string{"bash", "shell", "console"}, b.Lang, "%s: a command's block is sh", b)
			if b.Lang == "" || b.Lang == "text" {
				first, _, _ := strings.Cut(b.Text, "\n")
				assert.NotRegexp(t, command, first, "%s: a command's block is sh", b)
			}
		}
		for i, line := range strings.Split(read(t, file), "\n") {
			if strings.HasPrefix(line, "    ") && !inBlock[i+1] {
				assert.NotRegexp(t, command, line, "%s:%d: a command's block is fenced", file, i+1)
			}
		}
	}
}

// TestScratch: no command leaves anything behind in the repository: it is for reading.
func TestScratch(t *testing.T) {
	into := regexp.MustCompile(`(^|[^0-9&])>>?\s*([^\s&|;]+)`)
	for _, file := range files(t, ".md") {
		for _, b := range blocksOf(t, file) {
			if b.Tag != Local && b.Tag != Root {
				continue
			}
			for _, m := range into.FindAllStringSubmatch(b.Text, -1) {
				to := strings.Trim(m[2], `"'`)
				assert.True(t, filepath.IsAbs(to) || strings.HasPrefix(to, "$"), "%s writes %s: write below $TMPDIR", b, to)
			}
		}
	}
}
