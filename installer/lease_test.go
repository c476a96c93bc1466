//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLeaseOnAFullDisk: each attempt fails with the same words, else each would be logged anew.
func TestLeaseOnAFullDisk(t *testing.T) {
	n := newNode(t, nil)
	require.NoError(t, os.Mkdir(n.RunDir, 0o755))
	mount(t, n.RunDir, "size=16k")
	filler := fill(t, n.RunDir)
	l := leaseOf(n.Config)
	t.Cleanup(l.end)
	first, again := l.claim(), l.claim()
	require.ErrorIs(t, first, syscall.ENOSPC)
	require.EqualError(t, again, first.Error())
	assert.ErrorContains(t, first, filepath.Join(n.RunDir, "agent")+": taking the lease: no space left")

	require.NoError(t, os.Remove(filler))
	require.NoError(t, os.Mkdir(l.path, 0o755)) // what is written cannot take its place
	first, again = l.claim(), l.claim()
	require.Error(t, first)
	require.EqualError(t, again, first.Error())
}
