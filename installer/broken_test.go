//go:build linux

package installer

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A file that somebody breaks or gives up is its owner's: nothing is made up in its place, and the node is not ready until it is whole.
func TestBrokenFileIsLeft(t *testing.T) {
	installed := func(t *testing.T) *node {
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
		a, stop := n.agent(onEvents)
		within(t, patience, "ready", ready(a))
		stop()
		return n
	}
	t.Run("after a boot", func(t *testing.T) {
		n := installed(t)
		require.NoError(t, os.RemoveAll(n.RunDir))
		n.write(n.conf("10-calico.conflist"), "{", 0o640)
		a, _ := n.agent(onEvents)
		within(t, patience, "not ready", func() bool { return code(a) == "no-network" })
		assert.ErrorContains(t, a.Ready(), "10-calico.conflist: no valid CNI configuration: line 1, column 1: unexpected end")
		assert.Equal(t, "{", n.read(n.conf("10-calico.conflist")))
		n.put(n.conf("10-calico.conflist"), calicoList)
		within(t, patience, "its owner has written it", ready(a))
		assert.True(t, n.captured())
	})
	t.Run("emptied in favour of another", func(t *testing.T) {
		n := installed(t)
		n.write(n.conf("10-calico.conflist"), "", 0o640)
		n.write(n.conf("20-cilium.conflist"), ciliumList, 0o640)
		a, _ := n.agent(onEvents)
		within(t, patience, "ready", ready(a))
		assert.Empty(t, n.read(n.conf("10-calico.conflist")))
		assert.Contains(t, n.read(n.conf("20-cilium.conflist")), "meshcni")
	})
	t.Run("masked", func(t *testing.T) {
		n := installed(t)
		require.NoError(t, os.Remove(n.conf("10-calico.conflist")))
		require.NoError(t, os.Symlink(os.DevNull, n.conf("10-calico.conflist")))
		a, _ := n.agent(onEvents)
		within(t, patience, "not ready", func() bool { return code(a) == "no-network" })
		link, err := os.Readlink(n.conf("10-calico.conflist"))
		require.NoError(t, err)
		assert.Equal(t, os.DevNull, link)
	})
	t.Run("removed", func(t *testing.T) {
		n := installed(t)
		require.NoError(t, os.Remove(n.conf("10-calico.conflist")))
		a, _ := n.agent(onEvents)
		within(t, patience, "not ready", func() bool { return code(a) == "no-network" })
		assert.NoFileExists(t, n.conf("10-calico.conflist"))
	})
	t.Run("another's, of the name that ours is to have", func(t *testing.T) {
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList, "05-theirs.conflist": calicoList[:50]})
		n.OwnFile, n.CNIConfName = SwitchOn, "05-theirs.conflist"
		_, err := Install(t.Context(), n.Config, discard)
		assert.Equal(t, []string{"own-name-taken"}, codes(err))
		assert.ErrorContains(t, err, "remove it")
		assert.Equal(t, calicoList[:50], n.read(n.conf("05-theirs.conflist")))
	})
}
