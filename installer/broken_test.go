//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// broken are texts that no runtime can load, made of one that it could.
var broken = map[string]func(text string) string{
	"cut off in our entry":       func(text string) string { return text[:len(text)-20] },
	"cut off in the network's":   func(text string) string { return text[:len(text)/4] },
	"empty":                      func(string) string { return "" },
	"blank":                      func(string) string { return "\n" },
	"garbage":                    func(string) string { return "\x00\x01\x02" },
	"JSON, and no list":          func(string) string { return `{"type": "meshcni"}` },
	"two texts in one":           func(text string) string { return text + text },
	"a conflict of two versions": func(text string) string { return "<<<<<<< ours\n" + text },
}

// What somebody breaks while no agent is there, the next one puts back, byte for byte.
func TestBrokenFileIsPutBack(t *testing.T) {
	for name, breaks := range broken {
		for file, ownFile := range map[string]OwnFile{"10-calico.conflist": OwnFileNever, "00-meshcni.conflist": OwnFileAlways} {
			t.Run(name+"/"+file, func(t *testing.T) {
				t.Parallel()
				n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
				n.OwnFile = ownFile
				n.install()
				before := n.tree()
				text := breaks(n.read(n.conf(file)))
				n.write(n.conf(file), text, 0o640)
				a, _ := n.agent(onEvents)
				within(t, patience, "ready", ready(a))
				assert.Equal(t, before, n.tree())
			})
		}
	}
}

// A running agent says which file is broken once it stays so, and gives its owner the time to finish.
func TestBrokenFileIsItsOwnersFirst(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList, "20-cilium.conflist": ciliumList})
	file := n.conf("10-calico.conflist")
	a, stop := n.agent(func(o *Options) { onEvents(o); o.Settle = 2 * time.Second })
	within(t, patience, "ready", ready(a))
	n.write(file, n.read(file)[:60], 0o640)
	within(t, patience, "not ready", func() bool { return code(a) == "no-network" })
	assert.ErrorContains(t, a.Ready(), file)
	assert.ErrorContains(t, a.Ready(), "line 4, column 4: unexpected end of JSON input")
	assert.Equal(t, ciliumList, n.read(n.conf("20-cilium.conflist")), "it is not taken for the node's")
	newer := `{"name": "newer", "cniVersion": "1.0.0", "plugins": [{"type": "calico"}]}`
	n.write(file, newer, 0o640)
	within(t, patience, "ready", ready(a))
	assert.Contains(t, n.read(file), `"newer"`)
	stop()

	n.write(file, newer[:20], 0o640) // and again, while no agent is there
	a, _ = n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	assert.Contains(t, n.read(file), `"newer"`, "what it was last")
}

// A list that was made of a single configuration is made of it again, also after a boot.
func TestBrokenListIsMadeAnew(t *testing.T) {
	n := newNode(t, map[string]string{"10-bridge.conf": bridgeConf})
	n.install()
	before := n.tree()
	require.NoError(t, os.RemoveAll(n.RunDir))
	n.write(n.conf("10-bridge.conflist"), "{", 0o640)
	n.install()
	assert.Equal(t, before, n.tree())
	n.uninstall()
	assert.Equal(t, bridgeConf, n.read(n.conf("10-bridge.conf")))
}

// What is not known is not made up, and what was given up is not brought back.
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
		n.OwnFile, n.CNIConfName = OwnFileAlways, "05-theirs.conflist"
		_, err := Install(t.Context(), n.Config, discard)
		assert.Equal(t, []string{"own-name-taken"}, codes(err))
		assert.ErrorContains(t, err, "remove it")
		assert.Equal(t, calicoList[:50], n.read(n.conf("05-theirs.conflist")))
	})
	t.Run("with an uninstall nothing of it stays", func(t *testing.T) {
		n := installed(t)
		require.FileExists(t, n.goodPath())
		n.uninstall()
		assert.NoFileExists(t, n.goodPath())
		left, err := filepath.Glob(n.RunDir + "/*")
		require.NoError(t, err)
		assert.Empty(t, left)
	})
}
