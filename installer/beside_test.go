//go:build linux

package installer

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFightOverOurOwnList: somebody removes the agent's own list each second for half a minute, with the default settings. From the second removal
// on the network's file has our entry too, so whatever the runtime loads has it.
func TestFightOverOurOwnList(t *testing.T) {
	t.Parallel()
	const file, own, removals = "10-calico.conflist", "00-meshcni.conflist", 30
	n := newNode(t, map[string]string{file: calicoList})
	n.OwnFile = OwnFileAuto
	a, stop := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	for range enoughLosses {
		n.put(n.conf(file), calicoList)
		within(t, patience, "put back", n.captured)
	}
	within(t, patience, "taken", func() bool { return n.loaded().Name == own && recall(n.Config).File == own })
	assert.NotContains(t, n.read(n.conf(file)), pluginName, "ours alone has the entry")

	began := time.Now()
	clear, done := n.clear(), 0
	var since func() int
	first, second := 0, 0
	for tick := time.NewTicker(time.Second); done < removals; <-tick.C {
		if err := os.Remove(n.conf(own)); errors.Is(err, fs.ErrNotExist) { // the agent backs off
			done++
			continue
		}
		done++
		if done <= 2 {
			within(t, patience, "captured again", func() bool {
				return n.captured() && (done == 1 || strings.Contains(n.read(n.conf(file)), pluginName))
			})
		}
		switch done {
		case 1:
			first = clear()
			clear = n.clear()
		case 2:
			second = clear()
			since = n.clear()
		}
	}
	require.NotNil(t, since)
	seen := since()
	t.Logf("%d removals in %s: %d and %d looks of the runtime in the clear at the first two, %d after them", done, time.Since(began).Round(time.Second), first, second, seen)
	assert.Zero(t, seen)
	within(t, patience, "the runtime has a list with our entry in the end too", n.captured)
	assert.Contains(t, n.read(n.conf(file)), pluginName)
	stop()

	// The network rewrites its file, and nobody removes ours any more: both have the entry, also after a boot.
	n.reboot()
	b, stop := n.agent(onEvents)
	within(t, patience, "ready", ready(b))
	n.put(n.conf(file), strings.Replace(rewritten, "MTU", "7", 1))
	within(t, patience, "in step", func() bool {
		return n.version(n.conf(own)) == 7 && n.version(n.conf(file)) == 7 && strings.Contains(n.read(n.conf(file)), pluginName)
	})
	stop()
	n.uninstall()
	assert.NoFileExists(t, n.conf(own))
	assert.Equal(t, strings.Replace(rewritten, "MTU", "7", 1), n.read(n.conf(file)), "byte for byte")
}
