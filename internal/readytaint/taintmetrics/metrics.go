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
	Nodes           *prometheus.GaugeVec   // by state
	Changes         *prometheus.CounterVec // by change and reason
	Failures        prometheus.Counter
	Breaker, Leader prometheus.Gauge
}

// New returns a product's metrics before anything has happened, registered with to.
func New(id meshcni.Identity, to prometheus.Registerer) *Metrics {
	m := &Metrics{
		Nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: id.Metric("taint_nodes"),
			Help: "Nodes, by state: ready, waiting (registered with the taint), gone (within the grace), tainted (again), held (over the share), outside (no agent can run there), kept-off (another taint keeps agents off)."},
			[]string{"state"}),
		Changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: id.Metric("taint_changes_total"),
			Help: "Changes of nodes' taints (add, remove), by reason: agent-ready, no-agent, agent-gone, node-booted."}, []string{"change", "reason"}),
		Failures: prometheus.NewCounter(prometheus.CounterOpts{Name: id.Metric("taint_failures_total"), Help: "Changes of nodes' taints that failed, and are tried again."}),
		Breaker:  prometheus.NewGauge(prometheus.GaugeOpts{Name: id.Metric("taint_breaker_open"), Help: "1 while nodes are not tainted because the share is used up."}),
		Leader:   prometheus.NewGauge(prometheus.GaugeOpts{Name: id.Metric("taint_leader"), Help: "1 while this controller is the one that works, else 0."}),
	}
	to.MustRegister(m.Nodes, m.Changes, m.Failures, m.Breaker, m.Leader)
	m.Observe(nil)
	m.Changes.WithLabelValues(string(readytaint.Remove), string(readytaint.AgentReady))
	m.Changes.WithLabelValues(string(readytaint.Add), string(readytaint.AgentGone))
	return m
}

// Observe sets how many nodes stand how.
func (m *Metrics) Observe(nodes map[readytaint.Standing]int) {
	for _, s := range readytaint.Standings {
		m.Nodes.WithLabelValues(string(s)).Set(float64(nodes[s]))
	}
}
