package systemtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestFollow: who follows hears of a pod that waits, of its capture by ADD before anybody says at the API server that it has a network, of a pod
// outside of the mesh, and of one that goes; until the agent ends.
func TestFollow(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	agent := n.start()
	watch, err := proctest.Start(proctest.Options{Dir: n.dir, Name: "watch"}, n.program(), "watch", "--run-dir="+n.in("run"))
	require.NoError(t, err)
	t.Cleanup(watch.Kill)
	says := func(line string, args ...any) {
		t.Helper()
		line = fmt.Sprintf(line, args...)
		require.NoError(t, watch.WaitFor(patience, func() error {
			if !strings.Contains(watch.Log(), line) {
				return fmt.Errorf("it does not say %q, but:\n%s", line, watch.Log())
			}
			return nil
		}))
	}
	plain := n.pod("plain", small(t, "10.244.1.8"), "", "10.244.1.8").create()
	says("%s/plain outside ", n.ns)
	p := n.pod("cart", small(t, "10.244.1.9"), "", "10.244.1.9")
	p.Annotations[istio.StatusAnnotation] = "{}"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy", Image: "proxy"})
	p.create()
	says("%s/cart waiting starting", n.ns)
	p.add()
	says("%s/cart captured recorded", n.ns)
	n.Remove(t, n.ns, plain.Name)
	says("%s/plain outside gone", n.ns)
	require.NoError(t, agent.Stop(patience))
	<-watch.Done()
	assert.Contains(t, watch.Log(), "read the answer")
}
