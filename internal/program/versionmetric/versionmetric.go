// Package versionmetric exports the build of a program as a metric. Package version
// cannot do that, because the plugin links it and must stay small.
package versionmetric

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/program/version"
)

// Registry returns a registry with the [Collector] of a product's program and the metrics of the Go runtime and of the process.
func Registry(id meshcni.Identity, program string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(Collector(id, program), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Collector returns the gauge build_info of a product, which is always 1, with the labels
// program, version, revision (the commit, empty if unknown) and goversion.
func Collector(id meshcni.Identity, program string) prometheus.Collector {
	i := version.Get()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: id.Metric("build_info"),
		Help: "Always 1; the labels say which build of which program serves these metrics.",
		ConstLabels: prometheus.Labels{
			"program": program, "version": i.Version, "revision": i.Commit, "goversion": i.Go,
		},
	})
	g.Set(1)
	return g
}
