package main

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// TestChart: Helm reads the package as it reads the chart, but for the versions.
func TestChart(t *testing.T) {
	file := filepath.Join(outDir(t), "meshcni-1.2.3-test.1.tgz")
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	packed, err := loader.LoadArchive(f)
	require.NoError(t, err)
	// The copy that it was made of, since the sources may have changed meanwhile.
	want, err := loader.LoadDir(filepath.Join(temp, "a", "deploy", "helm", "meshcni"))
	require.NoError(t, err)
	assert.Equal(t, "1.2.3-test.1", packed.Metadata.Version)
	assert.Equal(t, testVersion, packed.Metadata.AppVersion)
	want.Metadata.Version, want.Metadata.AppVersion = packed.Metadata.Version, packed.Metadata.AppVersion
	assert.Equal(t, want.Metadata, packed.Metadata)
	assert.Equal(t, want.Values, packed.Values)
	assert.Equal(t, want.Schema, packed.Schema)
	assert.ElementsMatch(t, want.Templates, packed.Templates)
	assert.ElementsMatch(t, want.Files, packed.Files)
	for _, e := range untargz(t, file) {
		assert.Equal(t, int64(1234567890), e.ModTime.Unix(), e.Name)
		assert.Zero(t, e.Uid+e.Gid, e.Name)
	}
}

// TestManifests: they are those of the sources, but for the version, which is only this one's.
func TestManifests(t *testing.T) {
	const root = "meshcni_1.2.3-test.1_manifests/"
	archive := filepath.Join(outDir(t), root[:len(root)-1]+".tar.gz")
	c, err := loader.LoadDir(filepath.Join(temp, "a", "deploy", "helm", "meshcni"))
	require.NoError(t, err)
	found := 0
	for _, e := range untargz(t, archive) {
		if e.Name == root {
			continue
		}
		found++
		text := string(e.data)
		assert.Contains(t, text, `image: "meshcni/meshcni:`+testVersion+`"`, e.Name)
		source, err := os.ReadFile(filepath.Join(temp, "a", "deploy", "manifests", path.Base(e.Name)))
		require.NoError(t, err)
		assert.Equal(t, string(source), strings.ReplaceAll(text, testVersion, c.Metadata.AppVersion), e.Name)
		assert.NotRegexp(t, `\b`+c.Metadata.AppVersion+`\b`, text, e.Name)
	}
	sources, err := os.ReadDir(filepath.Join(temp, "a", "deploy", "manifests"))
	require.NoError(t, err)
	assert.Len(t, sources, found)
}
