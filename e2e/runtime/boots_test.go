package runtime

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// boots are what becomes of the network's files at a boot, before the runtime starts.
var boots = []struct {
	name string
	do   func(t *testing.T, n *node)
}{
	{"entry kept", func(*testing.T, *node) {}},
	{"file rewritten", func(t *testing.T, n *node) {
		require.NoError(t, os.WriteFile(networkFile, []byte(n.named(ptp(false))), 0o600))
	}},
	{"etc in memory", func(t *testing.T, n *node) { n.emptyNetworks(t) }}, // the network writes its file once the runtime runs
}

// testBoots: with the manifest as it is no pod of the mesh makes a connection in the clear at any boot, whatever became of the network's files, though
// pods start with the agent and before it. The tag long makes it twenty boots of each kind.
func testBoots(t *testing.T, k kind) {
	if !k.hook {
		t.Log("this runtime starts no plugin by itself: its boots are in e2e/cluster")
		return
	}
	for _, kind := range boots {
		t.Run(kind.name, func(t *testing.T) {
			n := newNode(t, k, ptp(false))
			a := n.runAgent(t)
			eventually(t, "the runtime's own plugin is there", func() error { _, err := os.Stat(preinstalled.Link); return err })
			ns := n.namespace(t)
			for round := range longtest.Rounds(2, 20) {
				require.NoError(t, n.RemoveAll(t.Context()))
				n.losePower(t)
				kind.do(t, n)
				require.NoError(t, n.Boot())
				pods := []*corev1.Pod{n.create(t, early(ns, fmt.Sprintf("before-%d", round))), n.create(t, early(ns, fmt.Sprintf("with-%d", round)))}
				if _, err := os.Stat(networkFile); err != nil {
					require.NoError(t, os.WriteFile(networkFile, []byte(n.named(ptp(false))), 0o600))
				}
				started := make([]*sandbox, len(pods))
				ctx, cancel := context.WithTimeout(t.Context(), netnstest.Patience)
				var g errgroup.Group
				for i, pod := range pods {
					g.Go(func() (err error) {
						started[i], err = n.kubelet(ctx, pod)
						return err
					})
				}
				g.Go(func() error {
					if err := os.MkdirAll(runDir, 0o755); err != nil {
						return err
					}
					again, err := a.Again(ctx, a.volumes)
					if err == nil {
						a.sandbox = again
					}
					return err
				})
				require.NoError(t, g.Wait())
				cancel()
				for _, s := range started {
					require.Contains(t, firstFate(t, s), proxied, "boot %d", round)
				}
			}
		})
	}
}

// kubelet starts a pod as a kubelet does: what fails is tried again, a sandbox that could not be made with a new one.
func (n *node) kubelet(ctx context.Context, pod *corev1.Pod) (s *sandbox, err error) {
	attempt := uint32(0)
	err = proctest.Poll(netnstest.Patience, func() (err error) {
		s, err = n.runSandbox(ctx, pod, sandboxConfig(pod, attempt))
		attempt++
		return err
	})
	for i := range pod.Spec.Containers {
		if err == nil {
			err = proctest.Poll(netnstest.Patience, func() error { return s.StartContainer(ctx, &pod.Spec.Containers[i], nil) })
		}
	}
	return s, err
}
