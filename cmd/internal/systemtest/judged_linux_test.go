package systemtest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

var intact = regexp.MustCompile(`meshcni_verifications_total\{result="intact"\} (\d+)`)

// TestMeshIsAskedOnce: a running agent asks the mesh once about each version of a healthy captured pod, however often it verifies the pod's
// rules and says how it is; and not at all while nothing changes.
func TestMeshIsAskedOnce(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	var asked atomic.Int64
	mesh := istio.New("kube-system")
	decline := mesh.Policy.Decline
	mesh.Policy.Decline = func(pod *corev1.Pod, proxy *corev1.Container) (status.Code, string) {
		asked.Add(1)
		if decline != nil {
			return decline(pod, proxy)
		}
		return "", ""
	}
	p := n.pod("cart", small(t, "10.244.1.9"), "", "10.244.1.9")
	p.Annotations[istio.StatusAnnotation] = "{}"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy", Image: "proxy"})
	p.create().runs()

	port, err := proctest.FreePort()
	require.NoError(t, err)
	n.health = fmt.Sprintf("127.0.0.1:%d", port)
	c := nodeagent.DefaultConfig(meshcni.Identity{})
	c.InstalledElsewhere, c.Node, c.RunDir, c.CNICacheDir = true, n.name, n.in("run"), n.in("cache")
	c.HealthAddress, c.MetricsAddress = n.health, n.health
	c.Repair.Action, c.Repair.VerifyInterval, c.Repair.Backend = repair.ActionRepair, 20*time.Millisecond, ruleset.BackendNftables
	c.Repair.Detect, c.Repair.NodeBudget = &repair.Detection{}, repair.Unlimited
	api, err := n.server.Config(kubetest.AdminToken)
	require.NoError(t, err)
	agent, err := nodeagent.New(nodeagent.Options{Dialects: []dialect.Dialect{mesh}, Config: c, API: api, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})

	verified := func() int {
		found := intact.FindStringSubmatch(n.get("/metrics"))
		if found == nil {
			return 0
		}
		times, _ := strconv.Atoi(found[1])
		return times
	}
	further := func(times int) {
		t.Helper()
		before := verified()
		n.until("verified, and again", func() bool { return verified() >= before+times && n.states()["cart"].State == status.StateCaptured })
	}
	further(20)
	before := asked.Load()
	further(40)
	assert.Zero(t, asked.Load()-before, "while nothing changes")
	n.label(kubetest.PodPath(n.ns, "cart"), map[string]any{"changed": "yes"})
	n.until("the change is seen", func() bool { return asked.Load() > before })
	further(20)
	assert.LessOrEqual(t, asked.Load()-before, int64(2), "by one change")
	assert.Equal(t, http.StatusOK, func() int {
		resp, err := http.Get("http://" + n.health + "/readyz") //nolint:noctx // a test's
		require.NoError(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode
	}())
}
