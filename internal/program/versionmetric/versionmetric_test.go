package versionmetric_test

import (
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/program/version"
	"github.com/meshcni/meshcni/internal/program/versionmetric"
)

func TestCollector(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(versionmetric.Collector(meshcni.Identity{}, "meshcni-node"))
	scraped := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(scraped, httptest.NewRequest("GET", "/metrics", nil))
	i := version.Get()
	assert.Equal(t, `# HELP meshcni_build_info Always 1; the labels say which build of which program serves these metrics.
# TYPE meshcni_build_info gauge
meshcni_build_info{goversion="`+runtime.Version()+`",program="meshcni-node",revision="`+i.Commit+`",version="`+i.Version+`"} 1
`, scraped.Body.String())
}
