// Package taintmetrics has the metrics of the taint controller, apart from it, so that what compares metrics with the alerts and pages
// that use them need not run one.
package taintmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/readytaint"
)

// Metrics are the controller's. All but Leader mean something only where that is 1.
type Metrics struct {
	Changes         *prometheus.CounterVec // by change and reason
	Failures        prometheus.Counter
	Breaker, Leader prometheus.Gauge

	nodes *prometheus.GaugeVec
	all   []prometheus.Collector
}

// New returns a product's metrics before anything has happened.
func New(of meshcni.Identity) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: of.Metric("taint_nodes"),
			Help: "Nodes, by state: ready, waiting (registered with the taint), gone (within the grace), tainted (again), held (over the share), outside (no agent can run there), kept-off (another taint keeps agents off)."},
			[]string{"state"}),
		Changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: of.Metric("taint_changes_total"),
			Help: "Changes of nodes' taints (add, remove), by reason: agent-ready, no-agent, agent-gone, node-booted."}, []string{"change", "reason"}),
		Failures: prometheus.NewCounter(prometheus.CounterOpts{Name: of.Metric("taint_failures_total"), Help: "Changes of nodes' taints that failed, and are tried again."}),
		Breaker:  gauge(of.Metric("taint_breaker_open"), "1 while nodes are not tainted because the share is used up."),
		Leader:   gauge(of.Metric("taint_leader"), "1 while this controller is the one that works, else 0."),
	}
	for _, s := range readytaint.Standings {
		m.nodes.WithLabelValues(string(s))
	}
	m.Changes.WithLabelValues(string(readytaint.Remove), string(readytaint.AgentReady))
	m.Changes.WithLabelValues(string(readytaint.Add), string(readytaint.AgentGone))
	m.all = []prometheus.Collector{m.nodes, m.Changes, m.Failures, m.Breaker, m.Leader}
	return m
}

// Observe sets how many nodes stand how.
func (m *Metrics) Observe(nodes map[readytaint.Standing]int) {
	for _, s := range readytaint.Standings {
		m.nodes.WithLabelValues(string(s)).Set(float64(nodes[s]))
	}
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}
