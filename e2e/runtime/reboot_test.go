package runtime

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// reboot does to the machine what a loss of power does: no process of a pod is
// left, no namespace, no rule and nothing in /run, but all that was on the disk;
// and a runtime that starts with that. The API server is on another machine, as
// it were.
func (n *node) reboot(t testing.TB) {
	t.Helper()
	n.losePower(t)
	require.NoError(t, n.Boot())
}

// losePower is the first half of it: the runtime does not run.
func (n *node) losePower(t testing.TB) {
	t.Helper()
	n.Kill()
	_, disks := dirs()
	require.NoError(t, machine.LosePower(append(disks, "/run"), "/run/*"))
	eventually(t, "interfaces went with their namespaces", func() error {
		if l := links(t); len(l) > 0 {
			return fmt.Errorf("interfaces %v", l)
		}
		return nil
	})
}

// testReboot: the network still names the plugin, but its credentials were in
// /run. Pods of the mesh wait for the agent, which itself waits for nobody.
func testReboot(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	first := n.runAgent(t)
	ns := n.namespace(t)
	pods := n.runAll(t, meshed(ns, "one", withHostPort), meshed(ns, "two"), plain(ns, "three"))
	requireCaptured(t, pods[0])

	n.reboot(t)
	text, err := os.ReadFile(networkFile)
	require.NoError(t, err)
	require.Contains(t, string(text), "meshcni")
	require.NoFileExists(t, runDir+"/kubeconfig")
	n.waitNetworks(t, func(networks string) bool { return strings.Contains(networks, "meshcni") })

	// What a kubelet does with each pod: stop what is left of the old sandbox, and
	// make another.
	for _, s := range append(slices.Clone(pods), first.sandbox) {
		require.NoError(t, s.Stop(t.Context()), "DEL of what is no more")
	}
	// CRI-O forgets at its start what it cannot restore, says of it that it is stopped, and calls DEL by the way (restore in server/server.go).
	eventually(t, "nothing is left of them", func() error {
		for what, left := range leftovers(t) {
			if len(left) > 0 {
				return fmt.Errorf("%s: %v", what, left)
			}
		}
		return nil
	})
	for _, s := range pods[:2] {
		_, err := s.Again(t.Context(), nil)
		require.ErrorContains(t, err, "is it running on this node?")
		require.ErrorContains(t, err, "kubeconfig")
	}
	free, err := pods[2].Again(t.Context(), nil)
	require.NoError(t, err, "a pod outside of the mesh needs no agent")
	requireFree(t, free)

	require.NoError(t, os.MkdirAll(runDir, 0o755))
	again, err := first.Again(t.Context(), first.volumes)
	require.NoError(t, err, "nor does the agent")
	a := &agent{n, again, first.volumes}
	first.sandbox = again // whose log to show
	a.ready(t)
	for _, s := range pods[:2] {
		require.NoError(t, s.Remove(t.Context()))
		up, err := s.Again(t.Context(), nil)
		require.NoError(t, err)
		requireCaptured(t, up)
	}
	assert.Equal(t, "proxy:15006", strings.Fields(fromHost(hostAt(nodeIP, hostPort)))[0])
}
