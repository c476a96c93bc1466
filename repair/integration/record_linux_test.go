package integration

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// TestRepairIsWhatCheckHoldsThePodTo: after a repair in place the plugin's own record says what is in force, and the built
// plugin's CHECK goes by it; a record of the pod's earlier sandbox stays as it is.
func TestRepairIsWhatCheckHoldsThePodTo(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups)
	binary, err := binarytest.Build(t.TempDir(), binarytest.Command)
	require.NoError(t, err)
	for _, backend := range backends[:2] {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			broken := live(t, w, "crash-loop", "broken")
			run := t.TempDir()
			store, netns := attachment.Open(run), broken.net.Pod.ID()
			passed := attachment.Record{
				ID:    attachment.ID{Network: "k8s", ContainerID: "now", IfName: "eth0"},
				NetNS: attachment.NetNS{Path: broken.net.Pod.Path(), Dev: netns.Dev, Ino: netns.Ino},
				Pod:   status.ID{Namespace: w.ns, Name: "broken", UID: string(broken.UID)},
				By:    "ADD", Reason: "not-injected", Time: time.Now(),
			}
			before := passed
			before.ContainerID = "before"
			before.NetNS.Ino++
			require.NoError(t, store.Write(passed))
			require.NoError(t, store.Write(before))

			ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
				o.Action, o.Backend, o.Records = "repair", backend, store
			})
			ag.outcome("repaired check-failed")
			r, err := store.Read(passed.ID)
			require.NoError(t, err)
			assert.True(t, r.Selected)
			assert.Equal(t, backend, r.Backend)
			assert.Equal(t, "repair", r.By)
			old, err := store.Read(before.ID)
			require.NoError(t, err)
			assert.Equal(t, "ADD", old.By)
			assert.False(t, old.Selected)

			check := func() binarytest.Outcome {
				return binarytest.Attachment{
					Binary: binary, ContainerID: "now", NetNS: broken.net.Pod.Path(), Namespace: w.ns, Pod: "broken", UID: string(broken.UID),
					Config: map[string]any{"cniVersion": "1.0.0", "name": "k8s", "type": "meshcni", "run_dir": run},
				}.Run(t, "CHECK")
			}
			out := check()
			require.Zero(t, out.Exit, string(out.Stdout))
			assert.Contains(t, string(out.Stderr), `"outcome":"checked"`)
			require.NoError(t, broken.net.Pod.Run(exec.Command("nft", "flush", "ruleset")))
			code, message := check().Failure()
			assert.Equal(t, 100, code, message)
		})
	}
}
