package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "podtool"), []byte("program"), 0o600))
	require.NoError(t, writeArchive(filepath.Join(dir, "tar"), []string{Pause, Tool}, ToolPath, map[string]string{ToolPath: filepath.Join(dir, "podtool")}))
	text, err := os.ReadFile(filepath.Join(dir, "tar"))
	require.NoError(t, err)
	files := read(t, text)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	require.NoError(t, json.Unmarshal(files["manifest.json"], &manifest))
	require.Len(t, manifest, 1)
	assert.Equal(t, []string{Pause, Tool}, manifest[0].RepoTags)
	assert.Equal(t, map[string][]byte{"podtool": []byte("program")}, read(t, files[manifest[0].Layers[0]]))
	assert.Contains(t, string(files[manifest[0].Config]), `"Entrypoint":["/podtool"]`)
}

func read(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[header.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}
