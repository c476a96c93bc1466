package repair_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
)

// TestSeriesAreThereFromTheStart: what alerts count must be 0 before it is 1.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	for _, action := range repair.Actions {
		t.Run(string(action), func(t *testing.T) {
			cluster, registry := repairtest.New(), prometheus.NewPedanticRegistry()
			_, err := repair.New(repair.Options{
				Node: "node-1", Action: action, Meshes: dialect.SetOf(istio.New()), Metrics: registry, VerifyInterval: time.Hour,
			}.On(cluster))
			require.NoError(t, err)
			scraped := httptest.NewRecorder()
			promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scraped, httptest.NewRequest("GET", "/metrics", nil))
			text := scraped.Body.String()
			assert.Contains(t, text, `meshcni_verifications_total{result="drifted"} 0`)
			assert.Contains(t, text, `meshcni_pods_watch_errors_total{reason="forbidden"} 0`)
			acts := action != repair.ActionNone
			assert.Equal(t, acts, strings.Contains(text, "meshcni_repair_"), "a metric of repair where nothing is repaired")
			for _, labels := range []string{`outcome="failed",reason="error"`, `outcome="deferred",reason="node-budget"`, `outcome="too-late",reason="check-failed"`} {
				want := `meshcni_repair_outcomes_total{action="` + string(action) + `",` + labels + `} 0`
				assert.Equal(t, acts, strings.Contains(text, want), want)
			}
		})
	}
}
