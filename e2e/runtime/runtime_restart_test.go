package runtime

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/internal/node/attachment"
)

// testRestart: the runtime starts again while the API server is away. Each sandbox stays as it is, with its addresses: one
// from before the agent, one of the mesh and one outside. A runtime that collects has what nobody has any more removed.
func testRestart(t *testing.T, k kind) {
	n := newRecordedNode(t, k, ptp(true))
	ns := n.namespace(t)
	early := n.run(t, plain(ns, "early"))
	a := n.runAgent(t)
	pods := append(n.runAll(t, meshed(ns, "meshed", excluding), plain(ns, "plain")), early)
	before := states(t, pods...)
	stale := n.leaveRecord(t, pods[0], "0000000000")
	calls(t)

	n.server.StopAPI()
	back := false
	defer func() {
		if !back {
			require.NoError(t, n.server.StartAPI())
		}
	}()
	n.Kill()
	require.NoError(t, n.Boot())
	assert.Equal(t, before, states(t, pods...), "no sandbox is made anew")
	requireCaptured(t, pods[0])
	requireFree(t, pods[1])
	requireFree(t, pods[2])
	require.NoError(t, n.server.StartAPI())
	back = true
	eventually(t, "the agent and the network are ready", func() error {
		if err := a.notReady(t.Context()); err != nil {
			return err
		}
		return n.NetworkReady(t.Context())
	})

	again := calls(t)
	for i, s := range pods {
		if k.checks {
			assert.Equal(t, []string{"CHECK"}, commands(again, s.ID), "pod %d", i)
		} else {
			assert.Empty(t, commands(again, s.ID))
		}
	}
	if k.checks {
		assert.Equal(t, []string{"decision checked", "decision checked"}, checks(t, "meshed"), "after ADD, and now")
		assert.Equal(t, []string{"decision passed", "decision passed"}, checks(t, "plain"))
		assert.Empty(t, checks(t, "early"), "its network did not have the plugin")
	}
	_, unread := attachment.Open(runDir).Read(stale)
	if k.collects {
		network := commands(again, "")
		require.Contains(t, network, "STATUS")
		require.Equal(t, "GC", network[len(network)-1])
		valid := map[string]bool{} // by the last GC; CHECKs may come after it
		for _, c := range again {
			if c.Command != "GC" {
				continue
			}
			clear(valid)
			for _, v := range c.Config.Valid {
				valid[v.ContainerID] = true
			}
		}
		for _, s := range pods {
			assert.True(t, valid[s.ID], "it would be taken for one that is no more")
		}
		assert.False(t, valid[stale.ContainerID])
		assert.Error(t, unread, "the record of an attachment that is no more")
	} else {
		assert.NoError(t, unread, "nobody has asked to remove it")
		require.NoError(t, attachment.Open(runDir).Remove(stale))
	}
	requireCaptured(t, n.run(t, meshed(ns, "after")))
	if k.checks {
		n.restartBroken(t, pods[0])
	}
}

// restartBroken: a pod has lost its rules when a runtime that calls CHECK starts again. The sandbox runs on without an
// address, which has a kubelet make another; that one is captured.
func (n *node) restartBroken(t *testing.T, s *sandbox) {
	t.Helper()
	netns, err := s.NetNS(t.Context())
	require.NoError(t, err)
	for _, flush := range [][]string{{"iptables", "-t", "nat", "-F"}, {"ip6tables", "-t", "nat", "-F"}, {"nft", "flush", "ruleset"}} {
		output(t, "nsenter", append([]string{"--net=" + netns, "--"}, flush...)...)
	}
	n.Kill()
	require.NoError(t, n.Boot())
	status, err := s.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, cri.PodSandboxState_SANDBOX_READY, status.GetStatus().GetState())
	assert.Empty(t, status.GetStatus().GetNetwork().GetIp())
	outcomes := checks(t, s.Pod.Name)
	assert.Equal(t, "decision failed", outcomes[len(outcomes)-2])
	assert.Equal(t, "failed ", outcomes[len(outcomes)-1])
	require.NoError(t, s.Remove(t.Context()))
	eventually(t, "the network is ready", func() error { return n.NetworkReady(t.Context()) })
	fresh, err := s.Again(t.Context(), nil)
	require.NoError(t, err)
	requireCaptured(t, fresh)
}

// leaveRecord leaves the record of an attachment as if it were that of another container, and nobody had called DEL for it.
func (n *node) leaveRecord(t testing.TB, like *sandbox, id string) attachment.ID {
	t.Helper()
	store := attachment.Open(runDir)
	for r, err := range store.All() {
		require.NoError(t, err)
		if r.ID.ContainerID == like.ID {
			r.ID.ContainerID = id
			require.NoError(t, store.Write(r))
			return r.ID
		}
	}
	require.Fail(t, "the sandbox has no record")
	return attachment.ID{}
}

// states are what the runtime says of sandboxes and what a restart must not change, by their IDs.
func states(t testing.TB, sandboxes ...*sandbox) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, s := range sandboxes {
		status, err := s.Status(t.Context())
		require.NoError(t, err)
		netns, err := s.NetNS(t.Context())
		require.NoError(t, err)
		all[s.ID] = []string{status.GetStatus().GetState().String(), netns}
		for _, ip := range addrs(t, s) {
			all[s.ID] = append(all[s.ID], ip.String())
		}
		for _, name := range slices.Sorted(maps.Keys(s.containers)) {
			c, err := s.n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: s.containers[name]})
			require.NoError(t, err)
			all[s.ID] = append(all[s.ID], c.GetStatus().GetState().String())
		}
	}
	return all
}
