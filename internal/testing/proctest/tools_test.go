package proctest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/proctest"
)

func TestTool(t *testing.T) {
	cache, onPath := t.TempDir(), t.TempDir()
	t.Setenv("MESHCNI_CACHE", cache)
	t.Setenv("PATH", onPath)
	program := func(path string, mode os.FileMode) string {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, nil, mode))
		return path
	}
	_, err := proctest.Tool("a")
	require.Error(t, err)

	elsewhere := program(filepath.Join(onPath, "a"), 0o755)
	got, err := proctest.Tool("a")
	require.NoError(t, err)
	assert.Equal(t, elsewhere, got)

	ours := program(proctest.Cache("bin", "a"), 0o644)
	got, err = proctest.Tool("a")
	require.NoError(t, err)
	assert.Equal(t, elsewhere, got, "a file that cannot be run is no tool")

	require.NoError(t, os.Chmod(ours, 0o755)) //nolint:gosec // a program
	got, err = proctest.Tool("a")
	require.NoError(t, err)
	assert.Equal(t, ours, got)
}
