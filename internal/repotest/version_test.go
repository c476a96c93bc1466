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

// named is how a version of a file, an image or a module of a release is written. Pages write v1.2.3 where they mean any.
var named = regexp.MustCompile(`meshcni(?:/meshcni:v|/meshcni@v|[-_])(\d+\.\d+\.\d+)`)

// TestVersion: the chart says which version is released next, and whatever names one names that.
func TestVersion(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		return string(text)
	}
	chart := read("deploy/helm/meshcni/Chart.yaml")
	version := regexp.MustCompile(`(?m)^version: (\d+\.\d+\.\d+)$`).FindStringSubmatch(chart)
	require.NotNil(t, version)
	assert.Contains(t, chart, "\nappVersion: v"+version[1]+"\n")
	_, released, _ := strings.Cut(read("CHANGELOG.md"), "\n## Unreleased\n")
	newest := regexp.MustCompile(`(?m)^## (\S+)$`).FindStringSubmatch(released)
	require.NotNil(t, newest)
	assert.Equal(t, version[1], newest[1], "the changelog's newest release")
	found := 0
	for _, dir := range []string{"README.md", "docs", "examples", "deploy", "playground/README.md"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range named.FindAllStringSubmatch(string(text), -1) {
				found++
				assert.Contains(t, []string{version[1], "1.2.3"}, m[1], "%s: %s", path, m[0])
			}
			return nil
		}))
	}
	assert.Greater(t, found, 20)
}
