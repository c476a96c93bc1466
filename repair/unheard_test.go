package repair_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair"
)

// TestUnheardOf: a controller with its own watch of a real API server that is away says so: as a warning, a metric, and once the server is
// back, an event of the node. It stays ready, since what it knows is still worth something.
func TestUnheardOf(t *testing.T) {
	netnstest.Require(t, kubetest.Servers)
	s := kubetest.Own(t, kubetest.Options{})
	config, err := s.Config(kubetest.AdminToken)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	o := repair.Options{Config: config, Node: "n1", Meshes: dialect.SetOf(istio.New()), Action: repair.ActionLabel, Metrics: registry}
	o.SetUnheard(time.Millisecond)
	c, err := repair.New(o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() { stop(); assert.NoError(t, <-ended) }()
	outdated := func() (is float64) {
		all, err := registry.Gather()
		require.NoError(t, err)
		for _, m := range all {
			if m.GetName() == "meshcni_watch_outdated" {
				return m.GetMetric()[0].GetGauge().GetValue()
			}
		}
		require.Fail(t, "there is no meshcni_watch_outdated")
		return 0
	}
	quiet := func() error {
		if w := c.News(); len(w) > 0 || outdated() != 0 {
			return fmt.Errorf("it says %q", w)
		}
		return c.Ready()
	}
	waittest.Eventually(t, "the controller hears of pods", quiet)
	s.StopAPI()
	waittest.Eventually(t, "the controller hears of no pods", func() error {
		if len(c.News()) == 0 || outdated() != 1 {
			return errors.New("it says nothing")
		}
		return nil
	})
	assert.Regexp(t, "^pods-outdated: the API server has told nothing of the node's pods since .* the agent may not know of new ones: watch pods: ", c.News()[0].String())
	require.NoError(t, c.Ready())
	require.NoError(t, s.StartAPI())
	waittest.Eventually(t, "it hears again", quiet)
	admin := s.Admin(t)
	waittest.Eventually(t, "the node has the event", func() error {
		events := &corev1.EventList{}
		admin.Do(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, events)
		for _, e := range events.Items {
			if e.Reason == "PodsOutdated" && e.InvolvedObject.Name == "n1" && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("there are %d events", len(events.Items))
	})
}
