package image_test

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/image"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, image.Write(path, map[string][]byte{"a/b": []byte("text")}, []string{"/a/b"}, "name:1", "name:2"))
	files := read(t, path)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	require.NoError(t, json.Unmarshal(files["manifest.json"], &manifest))
	require.Len(t, manifest, 1)
	assert.Equal(t, []string{"name:1", "name:2"}, manifest[0].RepoTags)
	layer := filepath.Join(t.TempDir(), "layer.tar")
	require.NoError(t, os.WriteFile(layer, files[manifest[0].Layers[0]], 0o600))
	assert.Equal(t, map[string][]byte{"a/b": []byte("text")}, read(t, layer))
	assert.Contains(t, string(files[manifest[0].Config]), `"Entrypoint":["/a/b"]`)
}

func read(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[header.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}
