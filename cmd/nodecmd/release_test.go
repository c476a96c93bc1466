//go:build linux

package nodecmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReleaseByAgent: without an agent nothing is released, and that is no failure.
func TestReleaseByAgent(t *testing.T) {
	dir := t.TempDir()
	code, _, stderr := run(t, map[string]string{"MESHCNI_RUN_DIR": dir}, "release", "--by-agent")
	assert.Zero(t, code, stderr)
	assert.Contains(t, stderr, "no agent runs on this node")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left, "it did not begin to do it itself")
}

// TestNothingToRelease: a node on which no agent has had pods of a node's proxy, or of which all were released, is uninstalled without
// asking anybody, whatever the settings say.
func TestNothingToRelease(t *testing.T) {
	dir := t.TempDir()
	p := Program{}
	p.setDefaults()
	s := p.defaults()
	s.RunDir, s.Ambient.Enabled = dir, true
	assert.False(t, p.hadProxied(s))
	require.NoError(t, os.WriteFile(filepath.Join(dir, turnsFile), nil, 0o600))
	assert.True(t, p.hadProxied(s))
}
