package runtime

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// testRefuse: a pod whose settings cannot be understood does not start, and the
// runtime's error, which becomes the pod's event, says what to correct; then it
// starts.
func testRefuse(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	n.runAgent(t, "--add-deadline=2s")
	ns := n.namespace(t)
	before := leftovers(t) // the agent's own
	pod := n.create(t, meshed(ns, "wrong", annotate(istio.ExcludeOutboundPorts, "3306,mysql"), annotate("traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.0/33")))
	_, err := n.RunPod(t.Context(), pod, nil)
	for _, want := range []string{
		ns + "/wrong", istio.ExcludeOutboundPorts, "3306,mysql", `"mysql" is not a port`, "traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.0/33",
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.Equal(t, before, leftovers(t))

	fixed := &corev1.Pod{}
	n.admin.Do(t, http.MethodPatch, kubetest.PodPath(ns, "wrong"), map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		istio.ExcludeOutboundPorts: "3306", "traffic.sidecar.istio.io/excludeOutboundIPRanges": nil,
	}}}, fixed)
	s, err := n.RunPod(t.Context(), fixed, nil)
	require.NoError(t, err)
	requireCaptured(t, s)
	requireFates(t, s, "app", map[string]string{"tcp:" + hostAt(elsewhere4, excludedOut): "elsewhere:3306"})

	// A pod that the API server does not have, and one that has the name of another.
	unknown := meshed(ns, "unknown")
	unknown.UID = "0b1c7d0e-6f1f-4e0c-9a55-2f0f6f8c3f11"
	_, err = n.RunPod(t.Context(), unknown, nil)
	require.ErrorContains(t, err, ns+"/unknown")
	require.ErrorContains(t, err, "not found")
	impostor := n.create(t, meshed(ns, "impostor"))
	real := impostor.UID
	impostor.UID = unknown.UID
	_, err = n.RunPod(t.Context(), impostor, nil)
	require.ErrorContains(t, err, string(real))
	require.ErrorContains(t, err, string(unknown.UID))
}

// testRemoval: what made a sandbox goes with it, however often the runtime is
// asked to stop it, also without the API server and without the agent's files.
func testRemoval(t *testing.T, k kind) {
	n := newNode(t, k, bridge(true))
	a := n.runAgent(t)
	ns := n.namespace(t)
	a.stop(t)
	before := leftovers(t)
	pods := n.runAll(t, meshed(ns, "one", withHostPort), meshed(ns, "two"), plain(ns, "three"))
	require.NotEqual(t, before, leftovers(t))
	netns, err := pods[0].NetNS(t.Context())
	require.NoError(t, err)
	require.FileExists(t, netns)

	require.NoError(t, pods[0].Stop(t.Context()))
	require.NoError(t, pods[0].Stop(t.Context()))
	assert.NoFileExists(t, netns)
	requireCaptured(t, pods[1])
	require.NoError(t, pods[0].Remove(t.Context()))

	n.server.StopAPI()
	require.NoError(t, pods[1].Remove(t.Context()), "DEL needs no API server")
	require.NoError(t, n.server.StartAPI())
	require.NoError(t, os.Remove(runDir+"/kubeconfig"))
	require.NoError(t, pods[2].Remove(t.Context()), "nor credentials")
	assert.Equal(t, before, leftovers(t))
}
