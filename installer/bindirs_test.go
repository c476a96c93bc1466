package installer

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The agent knows what is in the runtime's directories of plugins, and which of them cannot be read.
func TestBinDirs(t *testing.T) {
	n := newNode(t, map[string]string{"10-x.conflist": listOf("calico")})
	require.NoError(t, os.WriteFile(n.CNIBinDirs[0]+"/calico", nil, 0o755)) //nolint:gosec // a program
	n.CNIBinDirs = append(n.CNIBinDirs, n.CNIBinDirs[0]+"-gone")
	a, _ := n.agent(nil)
	within(t, patience, "it has installed what it can", func() bool {
		dirs := a.State().BinDirs
		return len(dirs) == 2 && dirs[0].Current
	})
	dirs := a.State().BinDirs
	assert.True(t, dirs[0].Usable)
	assert.True(t, dirs[0].Has("calico"))
	assert.False(t, dirs[0].Has("macvlan"))
	require.NoError(t, dirs[0].Err)
	require.Error(t, dirs[1].Err)
	assert.False(t, dirs[1].Current)

	n.put(n.binary(), "#!/bin/another\n")
	within(t, patience, "and again", func() bool { return n.read(n.binary()) != "#!/bin/another\n" })
}
