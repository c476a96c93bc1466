package taintcmd

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/readytaint"
)

// metrics are the controller's. All but leader mean something only where that is 1.
type metrics struct {
	nodes           *prometheus.GaugeVec
	changes         *prometheus.CounterVec
	failures        prometheus.Counter
	breaker, leader prometheus.Gauge
	all             []prometheus.Collector
}

// Collector returns the controller's metrics before anything has happened, for what compares their names with those that alerts and
// pages use.
func Collector(of meshcni.Identity) prometheus.Collector { return newMetrics(of) }

func newMetrics(of meshcni.Identity) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: of.Metric("taint_nodes"),
			Help: "Nodes, by state: ready, waiting (registered with the taint), gone (within the grace), tainted (again), held (over the share), outside (no agent can run there), kept-off (another taint keeps agents off)."},
			[]string{"state"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: of.Metric("taint_changes_total"),
			Help: "Changes of nodes' taints (add, remove), by reason: agent-ready, no-agent, agent-gone, node-booted."}, []string{"change", "reason"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: of.Metric("taint_failures_total"), Help: "Changes of nodes' taints that failed, and are tried again."}),
		breaker:  gauge(of.Metric("taint_breaker_open"), "1 while nodes are not tainted because the share is used up."),
		leader:   gauge(of.Metric("taint_leader"), "1 while this controller is the one that works, else 0."),
	}
	for _, s := range readytaint.Standings {
		m.nodes.WithLabelValues(string(s))
	}
	m.changes.WithLabelValues(string(readytaint.Remove), string(readytaint.AgentReady))
	m.changes.WithLabelValues(string(readytaint.Add), string(readytaint.AgentGone))
	m.all = []prometheus.Collector{m.nodes, m.changes, m.failures, m.breaker, m.leader}
	return m
}

// observe sets how many nodes stand how.
func (m *metrics) observe(nodes map[readytaint.Standing]int) {
	for _, s := range readytaint.Standings {
		m.nodes.WithLabelValues(string(s)).Set(float64(nodes[s]))
	}
}

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}
