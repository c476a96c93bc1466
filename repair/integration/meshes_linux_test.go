package integration

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// TestRepairOfSeveralMeshes: on a node of two meshes, the check of each is understood, and each broken pod gets the rules of its
// own mesh, and the record that says so.
func TestRepairOfSeveralMeshes(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups, netnstest.Binary("iptables-nft-save"))
	w := newWorld(t)
	pods := map[string]livingPod{"istio": live(t, w, "crash-loop", "istios"), "linkerd": live(t, w, "linkerd", "linkerds")}
	store := attachment.Open(t.TempDir())
	for name, pod := range pods {
		ns := pod.net.Pod.ID()
		require.NoError(t, store.Write(attachment.Record{
			ID:    attachment.ID{Network: "k8s", ContainerID: name, IfName: "eth0"},
			NetNS: attachment.NetNS{Path: pod.net.Pod.Path(), Dev: ns.Dev, Ino: ns.Ino},
			Pod:   status.ID{Namespace: w.ns, Name: pod.Name, UID: string(pod.UID)}, By: "ADD", Reason: "not-injected",
		}))
	}
	ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
		o.Action, o.Backend, o.Records, o.Meshes = "repair", ruleset.BackendIptablesNFT, store, dialect.SetOf(linkerd.New(), mesh)
	})
	eventually(t, "both are repaired", func() bool { return ag.counts("meshcni_repair_outcomes_total")["repaired check-failed"] >= 2 })
	for name, pod := range pods {
		var out strings.Builder
		cmd := exec.Command("iptables-nft-save")
		cmd.Stdout = &out
		require.NoError(t, pod.net.Pod.Run(cmd))
		assert.Equal(t, name == "istio", strings.Contains(out.String(), "ISTIO_OUTPUT"), out.String())
		assert.Equal(t, name == "linkerd", strings.Contains(out.String(), "PROXY_INIT_OUTPUT"), out.String())
		r, err := store.Read(attachment.ID{Network: "k8s", ContainerID: name, IfName: "eth0"})
		require.NoError(t, err)
		assert.Equal(t, []any{true, name, "repair"}, []any{r.Selected, r.Dialect, r.By})
	}
	assert.Equal(t, captured, pods["istio"].fates(t))
}
