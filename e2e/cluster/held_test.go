package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// TestHeldAtTheHook: the runtime does not see our entry, and the agent, in its own mounts, does. With a hook the kubelet says of each pod of the mesh why its
// containers are not made; without one it runs in the clear. Either way the defaults evict it, and once the runtime sees the entry the successor is captured.
func TestHeldAtTheHook(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "held")
	s.create(t, pod{name: "client", outside: true})
	s.ready(t, "client")
	install(t, c, "--set", "runtimeHook.preinstall=false") // which would capture it
	s.deploy(t, pod{name: "cart"})
	first := s.replica(t, "cart")
	s.assertCaptured(t, first, "client")

	back := entryHidden(t, c)
	s.kubectl(t, "delete", "pod", first, "--timeout=5m")
	lost := s.podOf(t, "cart")
	if containerd.NRI() {
		assert.Contains(t, s.event(t, lost, "Failed"), "have not set up its redirection", "the kubelet's own words")
		assert.Contains(t, s.event(t, lost, "RuntimeHookHeld"), "have not set up its redirection")
	} else {
		lost = s.replica(t, "cart")
		s.assertUncaptured(t, lost, "client")
	}
	back()
	s.kubectl(t, "wait", "--for=delete", "pod/"+lost, "--timeout=5m")
	s.event(t, lost, "MeshRepairEvicted")
	s.assertCaptured(t, s.replica(t, "cart"), "client")
	s.leave(t)
}

// entryHidden takes our entry from the network's list, as the runtime sees it, until the test or back ends it.
func entryHidden(t *testing.T, c *cluster) (back func()) {
	t.Helper()
	without := filepath.Join(machine.Dir, "without.conflist")
	require.NoError(t, os.WriteFile(without, []byte(primary), 0o644))
	seen := func(want bool) {
		path := filepath.Join(containerd.CNIConfDir, "99-stir.conflist") // the runtime reads its directory again
		require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
		require.NoError(t, os.Remove(path))
		eventually(t, soon, "the runtime has read its list again", func() error {
			networks, err := c.Containerd.Networks(t.Context())
			if err == nil && strings.Contains(networks, "meshcni") != want {
				err = errors.New(networks)
			}
			return err
		})
	}
	require.NoError(t, unix.Mount(without, confList, "", unix.MS_BIND, ""))
	unmount := sync.OnceFunc(func() { assert.NoError(t, unix.Unmount(confList, 0)) })
	t.Cleanup(unmount)
	seen(false)
	return func() { unmount(); seen(true) }
}
