package repair

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// metrics are the metrics of a [Controller]. Those that begin with repair_, after the product's prefix, are there only with an action, and those of
// verification only with an interval: a 0 that nobody keeps would look healthy.
type metrics struct {
	outcomes     *prometheus.CounterVec
	verified     *prometheus.CounterVec
	watch        *prometheus.CounterVec
	otherDialect *prometheus.GaugeVec
	uncaptured   *prometheus.CounterVec
	held         *prometheus.GaugeVec
	duration     *prometheus.HistogramVec
}

func newMetrics(o Options) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: o.Identity.Metric(name), Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: o.Identity.Metric(name), Help: help}, labels)
	}
	m := &metrics{
		outcomes: counter("repair_outcomes_total",
			"Attempts to deal with broken pods, by action, outcome and reason. An outcome that stays the same counts once a pod.",
			"action", "outcome", "reason"),
		verified: counter("verifications_total",
			"Comparisons of running pods' rules with the wanted ones, by result: intact, cannot-tell, drifted, uncaptured (it never had any), restored, no-process, variant, refused, failed.",
			"result"),
		watch: counter("pods_watch_errors_total", "Interruptions of the list and watch of pods, by reason: expired, forbidden, closed, other.", "reason"),
		otherDialect: gauge("other_dialect_pods",
			"Pods of this node of a mesh that the plugin is not configured for, and no other plugin serves, by its dialect.", "dialect"),
		uncaptured: counter("pods_uncaptured_total",
			"Pods in the mesh that were found without their rules, by how: not-called, passed-over, no-rules. A pod counts once for each.", "reason"),
		held: gauge("repair_held", "Whether deleting is held back, by reason.", "reason"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    o.Identity.Metric("repair_action_duration_seconds"),
			Help:    "How long an attempt took, from reading the pod again to seeing the effect.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"action"}),
	}
	m.setHeld("")
	m.begin(o)
	if reg := o.Metrics; reg != nil {
		reg.MustRegister(m.watch, m.otherDialect, m.uncaptured)
		if o.Action != ActionNone {
			reg.MustRegister(m.outcomes, m.held, m.duration)
		}
		if o.VerifyInterval > 0 {
			reg.MustRegister(m.verified)
		}
	}
	return m
}

// troubles are the outcomes that need attention, with their reasons.
var troubles = map[status.Code][]status.Code{
	statuscode.Failed:      {statuscode.Error, status.CodePodRefused, status.CodeRefused, statuscode.Timeout, statuscode.Variant},
	statuscode.Forbidden:   {statuscode.Forbidden},
	statuscode.Ineffective: {statuscode.FailsAgain, statuscode.GaveUp},
	statuscode.Unverified:  {statuscode.NoLabel, statuscode.NotDeleting, statuscode.RulesDiffer},
	statuscode.NoProcess:   {statuscode.NoProcess},
	statuscode.TooLate:     {statuscode.CheckFailed},
	statuscode.Deferred:    {statuscode.NodeBudget},
	statuscode.Blocked:     {statuscode.DisruptionBudget},
}

// begin creates the series that alerts watch. Prometheus does not count a first sample of 1 as an increase, so the series
// must exist before.
func (m *metrics) begin(o Options) {
	for _, kind := range []string{"expired", "forbidden", "closed", "other"} {
		m.watch.WithLabelValues(kind)
	}
	for _, result := range status.Codes(status.KindVerification) {
		m.verified.WithLabelValues(string(result))
	}
	for _, code := range []status.Code{status.CodeNotCalled, statuscode.PassedOver, statuscode.NoRules} {
		m.uncaptured.WithLabelValues(string(code))
	}
	if o.Detect != nil {
		for d := range o.Meshes.Others().All() {
			m.otherDialect.WithLabelValues(d.Name)
		}
	}
	for outcome, reasons := range troubles {
		for _, reason := range reasons {
			m.outcomes.WithLabelValues(string(o.Action), string(outcome), string(reason))
		}
	}
}

// setHeld shows why deletions are held back; empty: they are not.
func (m *metrics) setHeld(now status.Code) {
	for _, reason := range []status.Code{statuscode.PluginNotReady, statuscode.NotConfined} {
		m.held.WithLabelValues(string(reason)).Set(oneIf(reason == now))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// podCounts counts the node's pods at each scrape.
type podCounts struct {
	c                            *Controller
	pods, known, bypasses, ready *prometheus.Desc
}

func newPodCounts(c *Controller) podCounts {
	name := c.opts.Identity.Metric
	return podCounts{c, prometheus.NewDesc(name("pods"),
		"Pods of this node that have not ended, by state: captured, uncaptured, cannot-tell, drifted (other rules), broken (by its check), nothing-captured (by its settings, or past its rules), other-dialect, outside.", []string{"state"}, nil),
		prometheus.NewDesc(name("pods_known"), "Pods of this node that have not ended, in any state.", nil, nil),
		prometheus.NewDesc(name("pod_bypasses"), "Captured pods with a proxy of their own that leave a way past the mesh open, by its kind.", []string{"bypass"}, nil),
		prometheus.NewDesc(name("pods_controller_ready"), "Whether the controller of running pods works: 1 or 0.", nil, nil)}
}

// Describe implements [prometheus.Collector].
func (p podCounts) Describe(ch chan<- *prometheus.Desc) {
	ch <- p.pods
	ch <- p.known
	ch <- p.bypasses
	ch <- p.ready
}

// Collect implements [prometheus.Collector].
func (p podCounts) Collect(ch chan<- prometheus.Metric) {
	pods, n, ways := p.c.pods(), map[string]int{}, map[string]int{}
	for _, pod := range pods {
		n[p.c.stateOf(pod)]++
	}
	for _, pod := range p.c.Pods() {
		for _, code := range pod.Bypasses {
			ways[code]++
		}
	}
	for _, code := range dialect.BypassCodes {
		ch <- prometheus.MustNewConstMetric(p.bypasses, prometheus.GaugeValue, float64(ways[string(code)]), string(code))
	}
	for _, state := range podStates {
		ch <- prometheus.MustNewConstMetric(p.pods, prometheus.GaugeValue, float64(n[state]), state)
	}
	ch <- prometheus.MustNewConstMetric(p.ready, prometheus.GaugeValue, oneIf(p.c.Ready() == nil))
	ch <- prometheus.MustNewConstMetric(p.known, prometheus.GaugeValue, float64(len(pods)))
}
