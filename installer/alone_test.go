//go:build linux

package installer

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A node on which nothing is to be in the network: what an agent has put there captures pods until something else does, and then all of it goes but
// what pods that are still there need for their end, which goes with them. What agents remember stays.
func TestAlone(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	_, stop := n.agent(nil)
	within(t, patience, "the entry is there", n.captured)
	stop()
	pod := n.cached("pod-1", n.read(n.conf("10-calico.conflist")), nil)
	settings := filepath.Join(n.RunDir, "settings.json")
	record := filepath.Join(n.RunDir, "attachments", "net@c1@eth0.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(record), 0o755))
	n.put(settings, "{}")
	n.put(record, "{}")

	var hooked atomic.Bool
	var acted atomic.Int32
	a, stop := n.agent(func(o *Options) {
		o.Config.Alone, o.Poll = true, 10*time.Millisecond
		o.OnTurn = func(bool, bool) { acted.Add(1) }
		o.TakeBack = func() error {
			if hooked.Load() {
				return nil
			}
			return errors.New("not yet")
		}
	})
	within(t, patience, "it acts", func() bool { return acted.Load() > 0 && a.Ready() == nil })
	assert.True(t, n.captured(), "pods are captured by what is there")
	assert.FileExists(t, n.kubeconfig())

	hooked.Store(true)
	within(t, patience, "the entry has gone", func() bool { return n.read(n.conf("10-calico.conflist")) == calicoList })
	within(t, patience, "the token has gone", func() bool { _, err := os.Stat(n.kubeconfig()); return os.IsNotExist(err) })
	assert.FileExists(t, n.binary(), "a pod's DEL needs it")
	require.NoError(t, os.Remove(pod))
	within(t, patience, "the program goes with the last pod", func() bool { _, err := os.Stat(n.binary()); return os.IsNotExist(err) })
	require.NoError(t, a.Ready())
	assert.Equal(t, []string{"10-calico.conflist"}, n.left(n.CNIConfDir))
	assert.Empty(t, n.left(n.CNIBinDirs[0]))
	assert.FileExists(t, settings)
	assert.FileExists(t, record)

	// A network of another comes, and stays as it is.
	n.put(n.conf("05-cilium.conflist"), ciliumList)
	require.NoError(t, a.Ready())
	stop()
	assert.Equal(t, ciliumList, n.read(n.conf("05-cilium.conflist")))
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
	_, err := Install(t.Context(), func() Config { c := n.Config; c.Alone = true; return c }(), discard)
	assert.ErrorContains(t, err, "nothing is to be installed")
}
