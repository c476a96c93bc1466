package runtime

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
)

const kubeconfig = runDir + "/kubeconfig"

// installation is what of ours is in the host's directories: the files' names,
// sizes and times of change.
func installation(t testing.TB) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, path := range []string{plugin, networkFile, kubeconfig} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		got[path] = info.ModTime().String()
	}
	return got
}

// testAgentRestart: pods are captured whether the agent runs or not, and when it
// comes back it finds nothing to do but to get the plugin a new token.
func testAgentRestart(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	a := n.runAgent(t)
	ns := n.namespace(t)
	first := n.run(t, meshed(ns, "first"))
	requireCaptured(t, first)
	before := installation(t)

	for _, end := range []struct {
		name string
		fn   func() error
	}{
		{"killed", func() error { return a.KillContainer(t.Context(), agentName) }},
		// The DaemonSet is there, so this is no uninstall.
		{"stopped", func() error { return a.StopContainer(t.Context(), agentName, agentPatience) }},
	} {
		require.NoError(t, end.fn())
		requireCaptured(t, first)
		requireCaptured(t, n.run(t, meshed(ns, "while-"+end.name)))
		assert.Equal(t, before, installation(t))
		a.start(t)
		a.ready(t)
		requireCaptured(t, n.run(t, meshed(ns, "after-"+end.name)))
		after := installation(t)
		assert.NotEqual(t, before[kubeconfig], after[kubeconfig], "an agent that starts gets the plugin a new token")
		before[kubeconfig] = after[kubeconfig]
		assert.Equal(t, before, after, "what is right is not written again")
	}
}

// testUninstall: with pods running the DaemonSet is deleted, and then its pod ends.
// Pods stay captured, new ones start as if the agent had never been, and the
// plugin's file stays for as long as a pod needs it to be taken down.
func testUninstall(t *testing.T, k kind) {
	original := ptp(false)
	n := newNode(t, k, original)
	a := n.runAgent(t)
	ns := n.namespace(t)
	old := n.run(t, meshed(ns, "old"))
	requireCaptured(t, old)

	n.admin.Do(t, http.MethodDelete, daemonSets+"/"+agentName, nil, nil)
	a.stop(t)
	a.uninstalled(t)
	assert.Contains(t, a.Output(agentName), "1 attachments")
	assert.FileExists(t, plugin, "the old pod needs it")
	assert.NoFileExists(t, runDir+"/kubeconfig")
	text, err := os.ReadFile(networkFile)
	require.NoError(t, err)
	assert.Equal(t, n.named(original), string(text), "byte for byte")
	requireCaptured(t, old)
	fresh := n.run(t, meshed(ns, "fresh"))
	requireFree(t, fresh)
	before := states(t, old, fresh)
	n.Kill()
	require.NoError(t, n.Boot())
	assert.Equal(t, before, states(t, old, fresh), "also for a runtime that starts again, and perhaps calls CHECK of the old pod")
	requireCaptured(t, old)

	netns, err := old.NetNS(t.Context())
	require.NoError(t, err)
	require.NoError(t, old.Remove(t.Context()))
	assert.NoFileExists(t, netns)
	requireFree(t, fresh)
	a.uninstall(t.Context(), t, a.Pod)
	assert.NoFileExists(t, plugin, "nobody needs it any more")
	left, err := os.ReadDir(containerd.CNIBinDir)
	require.NoError(t, err)
	for _, f := range left {
		assert.NotContains(t, f.Name(), "meshcni")
	}
}
