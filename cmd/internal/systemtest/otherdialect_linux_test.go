package systemtest

import (
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestOtherDialect: an agent for Linkerd, and a pod of Istio. The agent stays ready, and says it by its metrics, its status, its
// exit code and an event of the node.
func TestOtherDialect(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start("--ambient=false", "--dialect=linkerd", "--detect")
	p := n.pod("cart", small(t, "10.244.1.7"), "", "10.244.1.7")
	p.Annotations[istio.StatusAnnotation] = "{}"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy", Image: "proxy"})
	p.create().runs()
	n.until("the pod is counted", func() bool {
		metrics := n.get("/metrics")
		return strings.Contains(metrics, `meshcni_other_dialect_pods{dialect="istio"} 1`) && strings.Contains(metrics, `meshcni_pods{state="other-dialect"} 1`)
	})
	ready := n.get("/readyz")
	assert.True(t, strings.HasPrefix(ready, "ok\n"), ready)
	named := "other-dialect: 1 of the node's pods are of mesh istio, which the plugin is not configured for (dialect linkerd), and their traffic bypasses the mesh: " + n.ns + "/cart;"
	assert.Contains(t, ready, named)
	var code int
	var out []byte
	n.until("the status says so", func() bool {
		cmd := exec.Command(n.program(), "status", "--run-dir="+n.in("run")) //nolint:gosec,noctx // our own
		out, _ = cmd.Output()
		code = cmd.ProcessState.ExitCode()
		return strings.Contains(string(out), "outside: "+n.ns+"/cart other-dialect: ")
	})
	assert.Contains(t, string(out), "warning: "+named)
	assert.Equal(t, 1, code)
	n.until("the node has the event", func() bool {
		var events corev1.EventList
		n.Do(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, &events)
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "OtherDialect" && e.InvolvedObject.Name == n.name && strings.Contains(e.Message, "mesh istio") && strings.Contains(e.Message, n.ns+"/cart")
		})
	})
}
