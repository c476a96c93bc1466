package kubectlcmd

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// betweenNodes: each node's pods of a mesh connect to the next node that has a pod to answer, in a ring; what fails there, and only
// there, is told with both nodes.
func betweenNodes(t *testing.T, y *trialFixture) {
	for name, dialects := range map[string][]string{"e": {"istio", "ambient"}, "f": {"istio"}, "g": {"linkerd", "ambient"}, "h": {}} {
		about := kubectltest.Sound(name, func(n *agentapi.Node) { n.Dialects = dialects })
		y.Node(t, name, func(path string) (any, error) {
			if path == agentapi.NodePath {
				return about(path)
			}
			return agentapi.Pod{State: &status.Pod{State: status.StateCaptured}}, nil
		})
	}
	test := func(t *testing.T, want int, nodes string) (r trialReport, text string) {
		t.Helper()
		code, out, errs := y.test(t.Context(), "--node", nodes, "-o", "json")
		require.Equal(t, want, code, out+errs)
		code, text, errs = y.test(t.Context(), "--node", nodes)
		require.Equal(t, want, code, text+errs)
		return kubectltest.Decode[trialReport](t, out), text
	}
	// ways are the rows between nodes, without the family: each is there in both.
	ways := func(t *testing.T, r trialReport) (ways []string) {
		t.Helper()
		count := map[string]int{}
		for _, row := range r.Rows {
			if row.To == "" {
				assert.Empty(t, row.From)
				continue
			}
			assert.Equal(t, row.Node, row.From)
			way := strings.Join([]string{row.From, row.To, row.Dialect, row.What, row.Result}, " ")
			if count[way]++; count[way] == 1 {
				ways = append(ways, way)
			}
		}
		for way, n := range count {
			assert.Equal(t, 2, n, way)
		}
		return ways
	}
	r, text := test(t, exitOK, "e,f,g,h")
	assert.Equal(t, []string{
		"e f istio outbound ok", "e f istio outbound, excluded port ok", "e f istio the proxy's own ok",
		"e f istio outbound to the mesh ok", "e f istio outbound to the mesh, excluded port ok", "e f istio proxy to proxy ok",
		"e f ambient outbound ok", "e g ambient outbound to the mesh ok", // f has no such pod
		"f g istio outbound ok", "f g istio outbound, excluded port ok", "f g istio the proxy's own ok",
		"f e istio outbound to the mesh ok", "f e istio outbound to the mesh, excluded port ok", "f e istio proxy to proxy ok",
		"g h linkerd outbound ok", "g h linkerd outbound, excluded port ok", "g h linkerd the proxy's own ok",
		"g h ambient outbound ok", "g e ambient outbound to the mesh ok",
	}, ways(t, r), "h has no mesh, and g is the only one of its own")
	assert.Regexp(t, `(?m)^e -> f +istio +IPv6 +proxy to proxy +ok$`, text)

	t.Run("one node", func(t *testing.T) {
		r, text := test(t, exitOK, "e")
		assert.Empty(t, ways(t, r))
		assert.NotContains(t, text, "->")
	})
	t.Run("a link that is cut", func(t *testing.T) {
		y.set(func() { y.cut["istio-1 istio-0"] = true })
		defer y.set(func() { clear(y.cut) })
		r, text := test(t, exitWrong, "e,f")
		failed := slices.DeleteFunc(r.Rows, func(row trialRow) bool { return row.Result == resultOK })
		assert.Equal(t, []string{"f e istio outbound to the mesh, excluded port failed", "f e istio proxy to proxy failed"}, ways(t, trialReport{Rows: failed}),
			"a connection that f's own proxy has does not leave the node")
		assert.Regexp(t, `(?m)^f -> e istio IPv4 proxy to proxy: failed: no connection to 10\.\S+:28000: no route to host$`, text)
	})
	t.Run("a pod that does not start", func(t *testing.T) {
		y.set(func() {
			y.started = func(pod *corev1.Pod) corev1.PodStatus {
				if pod.Name == "istio-0" || pod.Name == "peer-1" {
					return corev1.PodStatus{Phase: corev1.PodFailed}
				}
				return pod.Status
			}
		})
		defer y.set(func() { y.started = nil })
		r, _ := test(t, exitWrong, "e,f,g")
		assert.Equal(t, []string{
			"e g ambient outbound ok", "e g ambient outbound to the mesh ok",
			"g e linkerd outbound ok", "g e linkerd outbound, excluded port ok", "g e linkerd the proxy's own ok",
			"g e ambient outbound ok", "g e ambient outbound to the mesh ok",
		}, ways(t, r))
		r, _ = test(t, exitWrong, "e,f")
		assert.Empty(t, ways(t, r), "one node alone has pods that run")
	})
}
