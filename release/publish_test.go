//go:build long

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tool runs one of the tools that .ci/tool installs, or a script that does, in a directory.
func tool(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	root, err := find(".")
	require.NoError(t, err)
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `exec "$0" "$@"`, name}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, ".cache", "bin")+":"+os.Getenv("PATH"), "PLAIN_HTTP=1", "COSIGN_PASSWORD=secret",
		"HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must is tool that succeeds. It returns what was printed.
func must(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := tool(t, dir, name, args...)
	require.NoError(t, err, out)
	return strings.TrimSpace(out)
}

// TestPublish publishes the release as a maintainer does, and takes it as users do.
func TestPublish(t *testing.T) {
	script, err := filepath.Abs("publish.sh")
	require.NoError(t, err)
	dir := t.TempDir()
	must(t, dir, "cosign", "generate-key-pair")
	publish := func(t *testing.T) (string, error) {
		t.Helper()
		return tool(t, dir, script, outDir(t), testRegistry, filepath.Join(dir, "cosign.key"))
	}
	out, err := publish(t)
	require.NoError(t, err, out)

	index := openLayout(t)
	want, err := index.Digest()
	require.NoError(t, err)
	image, chart := testRegistry+"/meshcni/meshcni", testRegistry+"/meshcni/charts/meshcni"
	assert.Equal(t, want.String(), must(t, dir, "crane", "digest", image+":"+testVersion))
	signed := []string{image + ":" + testVersion, chart + ":" + testVersion[1:]}
	m, err := index.IndexManifest()
	require.NoError(t, err)
	for _, d := range m.Manifests {
		signed = append(signed, image+"@"+d.Digest.String())
	}
	require.Len(t, signed, 4)
	verify := []string{"verify", "--allow-http-registry", "--private-infrastructure", "--key"}
	for _, at := range signed {
		must(t, dir, "cosign", append(verify, "cosign.pub", at)...)
	}
	other := t.TempDir()
	must(t, other, "cosign", "generate-key-pair")
	out, err = tool(t, other, "cosign", append(verify, "cosign.pub", signed[0])...)
	assert.Error(t, err, out)

	must(t, other, "helm", "pull", "oci://"+chart, "--version", testVersion[1:], "--plain-http")
	pulled, err := os.ReadFile(filepath.Join(other, "meshcni-1.2.3-test.1.tgz"))
	require.NoError(t, err)
	made, err := os.ReadFile(filepath.Join(outDir(t), "meshcni-1.2.3-test.1.tgz"))
	require.NoError(t, err)
	assert.Equal(t, sum(made), sum(pulled))
	images := regexp.MustCompile(`(?m)^ *(?:- )?image: .*$`).FindAllString(must(t, other, "helm", "template", "meshcni", "meshcni-1.2.3-test.1.tgz", "--kube-version", "1.36"), -1)
	require.NotEmpty(t, images)
	for _, at := range images {
		assert.Equal(t, `image: "`+image+"@"+want.String()+`"`, strings.TrimLeft(at, " -"))
	}

	t.Run("again", func(t *testing.T) {
		before := must(t, dir, "crane", "digest", signed[1])
		out, err := publish(t)
		require.NoError(t, err, out)
		assert.Equal(t, before, must(t, dir, "crane", "digest", signed[1]))
	})
	for i, what := range []string{"is another image", "is another chart"} {
		t.Run(what, func(t *testing.T) {
			emptyRegistry()
			foreign, err := random.Image(64, 1)
			require.NoError(t, err)
			at, err := name.ParseReference(signed[i])
			require.NoError(t, err)
			require.NoError(t, remote.Write(at, foreign))
			out, err := publish(t)
			assert.Error(t, err)
			assert.Contains(t, out, what)
			_, err = tool(t, dir, "crane", "digest", signed[1-i])
			assert.Error(t, err, "nothing is pushed")
			digest, err := foreign.Digest()
			require.NoError(t, err)
			assert.Equal(t, digest.String(), must(t, dir, "crane", "digest", signed[i]))
		})
	}
	t.Run("refused", func(t *testing.T) {
		out, err := tool(t, dir, script, outDir(t), "registry.example.com", filepath.Join(dir, "cosign.key"))
		assert.Error(t, err)
		assert.Contains(t, out, "was not made for registry registry.example.com")
		altered := filepath.Join(t.TempDir(), "dist")
		require.NoError(t, os.CopyFS(altered, os.DirFS(outDir(t))))
		require.NoError(t, os.WriteFile(filepath.Join(altered, "meshcni-1.2.3-test.1.tgz"), []byte("another"), 0o600))
		out, err = tool(t, dir, script, altered, testRegistry, filepath.Join(dir, "cosign.key"))
		assert.Error(t, err)
		assert.Contains(t, out, "is not as it was released")
	})
}
