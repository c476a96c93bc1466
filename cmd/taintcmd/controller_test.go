package taintcmd

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/readytaint/taintmetrics"
)

// Without a DaemonSet no taint is put back by design, so that no share is used up any more.
func TestBreakerWithoutAgents(t *testing.T) {
	t.Parallel()
	c := &controller{
		log: slog.New(slog.DiscardHandler), metrics: taintmetrics.New(meshcni.Identity{}, prometheus.NewRegistry()),
		sets: cache.NewStore(cache.MetaNamespaceKeyFunc), held: 3,
	}
	c.metrics.Breaker.Set(1)
	next, failed := c.round(t.Context())
	assert.Zero(t, next)
	assert.False(t, failed)
	assert.Zero(t, testutil.ToFloat64(c.metrics.Breaker))
	assert.Zero(t, c.held)
}
