package doctest

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// normal is Go code without the indentation that its surroundings give it.
func normal(code string) string {
	lines := strings.Split(strings.Trim(code, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

// TestGoCode: the Go code that documentation shows stands, line by line, in a file that is compiled and tested. With
// ", shortened" lines in between may be left out.
func TestGoCode(t *testing.T) {
	seen := 0
	for _, file := range files(t, ".md", documented...) {
		for _, b := range blocksOf(t, file) {
			if b.Lang != "go" {
				continue
			}
			seen++
			path, ok := strings.CutPrefix(b.Mark, "from: ")
			if !assert.True(t, ok, "%s: say where the code is compiled: <!-- from: FILE -->", b) {
				continue
			}
			path, shortened := strings.CutSuffix(path, ", shortened")
			text, err := os.ReadFile(filepath.Join(root(t), path))
			if !assert.NoError(t, err, "%s", b) {
				continue
			}
			_, err = parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
			require.NoError(t, err)
			if !shortened {
				assert.True(t, strings.Contains(normal(string(text)), normal(b.Text)), "%s: this is not in %s:\n%s", b, path, b.Text)
				continue
			}
			rest := strings.Split(normal(string(text)), "\n")
			for _, line := range strings.Split(normal(b.Text), "\n") {
				at := 0
				for at < len(rest) && rest[at] != line {
					at++
				}
				if !assert.Less(t, at, len(rest), "%s: this is not in %s, or not there: %s", b, path, line) {
					break
				}
				rest = rest[at+1:]
			}
		}
	}
	require.NotZero(t, seen)
}
