package runtime

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testOutage: the API server is away when a pod starts. The pod waits for it, and
// comes up captured; a pod that the runtime's word puts outside of the mesh does
// not wait.
func testOutage(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	n.runAgent(t, "--log-level=debug", "--agent=off") // which would have the pod
	ns := n.namespace(t)
	waits, passes := n.create(t, meshed(ns, "waits")), n.create(t, plain(ns, "passes"))

	n.server.StopAPI()
	back := false
	defer func() {
		if !back {
			require.NoError(t, n.server.StartAPI())
		}
	}()
	started := make(chan error, 1)
	var s *sandbox
	go func() {
		var err error
		s, err = n.RunPod(t.Context(), waits, nil)
		started <- err
	}()
	free, err := n.RunPod(t.Context(), passes, nil)
	require.NoError(t, err)
	requireFree(t, free)
	eventually(t, "the plugin tries again", func() error {
		text, err := os.ReadFile(runDir + "/plugin.log")
		if err == nil && !strings.Contains(string(text), "read pod again") {
			err = os.ErrNotExist
		}
		return err
	})
	select {
	case err := <-started:
		require.Fail(t, "the pod did not wait", "%v", err)
	default:
	}
	require.NoError(t, n.server.StartAPI())
	back = true
	require.NoError(t, <-started)
	requireCaptured(t, s)
}
