package nodecontrol

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// metrics are the metrics of a [Controller].
type metrics struct {
	c         *Controller
	handOver  prometheus.Histogram
	found     *prometheus.CounterVec
	mended    *prometheus.CounterVec
	failures  *prometheus.CounterVec
	pods      *prometheus.Desc
	connected *prometheus.Desc
	depth     *prometheus.Desc
	ready     *prometheus.Desc
	bypasses  *prometheus.Desc
	journal   *prometheus.Desc
}

func newMetrics(c *Controller) *metrics {
	name := func(short string) string { return c.opts.Identity.Metric("nodeproxy_" + short) }
	counter := func(short, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(short), Help: help}, []string{label})
	}
	m := &metrics{
		c: c,
		handOver: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    name("hand_over_duration_seconds"),
			Help:    "How long the proxy took to accept a pod.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		}),
		found: counter("drift_found_total",
			"Captured pods that were found to lack something, by kind: rules-missing, rules-differ, no-listeners, probes-missing, status-stale.", "kind"),
		mended:    counter("drift_mended_total", "The same, once they are as they were again.", "kind"),
		failures:  counter("failures_total", "Attempts that failed, by step.", "step"),
		pods:      prometheus.NewDesc(name("pods"), "Pods of this node, by state and reason.", []string{"state", "reason"}, nil),
		connected: prometheus.NewDesc(name("proxies_connected"), "Proxies that are connected: 1, and 2 while one replaces the other.", nil, nil),
		depth:     prometheus.NewDesc(name("queue_depth"), "Pods that wait to be looked at.", nil, nil),
		bypasses:  prometheus.NewDesc(name("bypasses"), "Captured pods that leave a way past the mesh open, by its kind.", []string{"bypass"}, nil),
		journal: prometheus.NewDesc(name("journal_ready"),
			"Whether the network namespaces of captured pods are kept for the next agent: 1 or 0. With 0 it has to find them anew.", nil, nil),
		ready: prometheus.NewDesc(name("ready"), "Whether pods can be captured now: 1 or 0.", nil, nil),
	}
	// Prometheus does not count a first sample of 1 as an increase, so the series must exist before.
	for _, kind := range machine.DriftKinds() {
		m.found.WithLabelValues(string(kind))
		m.mended.WithLabelValues(string(kind))
	}
	for _, step := range machine.Steps() {
		m.failures.WithLabelValues(step)
	}
	return m
}

func (m *metrics) failed(err error) {
	var step *machine.StepError
	var back *heldBack
	if errors.As(err, &step) && !errors.As(err, &back) {
		m.failures.WithLabelValues(step.Step).Inc()
	}
}

// Describe implements [prometheus.Collector].
func (c *Controller) Describe(ch chan<- *prometheus.Desc) {
	m := c.metrics
	for _, d := range []*prometheus.Desc{m.pods, m.connected, m.depth, m.ready, m.bypasses, m.journal} {
		ch <- d
	}
	for _, part := range []prometheus.Collector{m.handOver, m.found, m.mended, m.failures} {
		part.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (c *Controller) Collect(ch chan<- prometheus.Metric) {
	m := c.metrics
	type labels struct{ state, reason string }
	counts, ways := map[labels]int{}, map[string]int{}
	for _, p := range c.Pods() {
		counts[labels{string(p.State), string(p.Reason)}]++
		if p.State == status.StateCaptured || p.Reason == status.CodeNothingCaptured || p.Reason == statuscode.Sandboxed {
			for _, code := range p.Bypasses {
				ways[code]++
			}
		}
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for l, n := range counts {
		gauge(m.pods, float64(n), l.state, l.reason)
	}
	for _, code := range dialect.BypassCodes {
		gauge(m.bypasses, float64(ways[string(code)]), string(code))
	}
	connected := 0
	if c.opts.Connected != nil {
		connected = c.opts.Connected()
	} else if c.opts.Proxy.Ready() == nil {
		connected = 1
	}
	gauge(m.connected, float64(connected))
	gauge(m.depth, float64(c.queue.Len()))
	good := func(err error) float64 {
		if err != nil {
			return 0
		}
		return 1
	}
	gauge(m.ready, good(c.Ready()))
	gauge(m.journal, good(c.opts.Namespaces.Journal()))
	for _, part := range []prometheus.Collector{m.handOver, m.found, m.mended, m.failures} {
		part.Collect(ch)
	}
}
