// Package versionmetric shows the build among a program's metrics. It is apart
// from package version, because the plugin links that one and must stay small.
package versionmetric

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/meshcni/meshcni/internal/version"
)

// Registry returns a registry with the program's [Collector] and the metrics of
// the Go runtime and of the process.
func Registry(program string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(Collector(program), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Collector is the gauge meshcni_build_info: always 1, with the labels program,
// version, revision (the commit, empty when not known) and goversion.
func Collector(program string) prometheus.Collector {
	i := version.Get()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "meshcni_build_info",
		Help: "Always 1; the labels say which build of which program serves these metrics.",
		ConstLabels: prometheus.Labels{
			"program": program, "version": i.Version, "revision": i.Commit, "goversion": i.Go,
		},
	})
	g.Set(1)
	return g
}
