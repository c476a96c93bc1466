package main

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// TestChart: Helm reads the package as it reads the chart, but for the versions and where the image is.
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
	index, err := openLayout(t).Digest()
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"meshcni.io/image-registry": testRegistry, "meshcni.io/image-digest": index.String()}, packed.Metadata.Annotations)
	want.Metadata.Annotations = packed.Metadata.Annotations
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

// TestManifests: they are those of the sources, but for the version, which is only this one's, and where the image is.
func TestManifests(t *testing.T) {
	index, err := openLayout(t).Digest()
	require.NoError(t, err)
	inspectManifests(t, outDir(t), testRegistry, "@"+index.String())
}

// TestNoDefaultRegistry: who makes a release for no registry gets a chart and manifests that install from none. Of images that
// are imported no digest is asked for.
func TestNoDefaultRegistry(t *testing.T) {
	outDir(t)
	for registry, annotations := range map[string]map[string]string{
		"": nil, "localhost": {"meshcni.io/image-registry": "localhost"}, "registry.example.com": {"meshcni.io/image-registry": "registry.example.com"},
	} {
		dir := t.TempDir()
		_, err := run(t.Context(), "chart", "--source", filepath.Join(temp, "a"), "--output", dir, "--version", testVersion, "--registry", registry)
		require.NoError(t, err)
		packed, err := loader.LoadFile(filepath.Join(dir, "meshcni-1.2.3-test.1.tgz"))
		require.NoError(t, err)
		assert.Equal(t, annotations, packed.Metadata.Annotations)
		inspectManifests(t, dir, cmp.Or(registry, "registry.invalid"), "")
	}
}

func inspectManifests(t *testing.T, dir, registry, digest string) {
	t.Helper()
	const root = "meshcni_1.2.3-test.1_manifests/"
	archive := filepath.Join(dir, root[:len(root)-1]+".tar.gz")
	c, err := loader.LoadDir(filepath.Join(temp, "a", "deploy", "helm", "meshcni"))
	require.NoError(t, err)
	found := 0
	for _, e := range untargz(t, archive) {
		if e.Name == root {
			continue
		}
		found++
		text := string(e.data)
		assert.Contains(t, text, `image: "`+registry+"/meshcni/meshcni:"+testVersion+digest+`"`, e.Name)
		assert.Equal(t, registry == "registry.invalid", strings.Contains(text, "registry.invalid"), e.Name)
		source, err := os.ReadFile(filepath.Join(temp, "a", "deploy", "manifests", path.Base(e.Name)))
		require.NoError(t, err)
		want := strings.ReplaceAll(string(source), "registry.invalid/meshcni/meshcni:"+c.Metadata.AppVersion, registry+"/meshcni/meshcni:"+c.Metadata.AppVersion+digest)
		if registry != "registry.invalid" {
			want = regexp.MustCompile(`(?m)^# registry\.invalid .*\n`).ReplaceAllString(want, "")
		}
		assert.Equal(t, want, strings.ReplaceAll(text, testVersion, c.Metadata.AppVersion), e.Name)
		assert.NotRegexp(t, `\b`+c.Metadata.AppVersion+`\b`, text, e.Name)
	}
	sources, err := os.ReadDir(filepath.Join(temp, "a", "deploy", "manifests"))
	require.NoError(t, err)
	assert.Len(t, sources, found)
}
