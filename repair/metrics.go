package repair

import "github.com/prometheus/client_golang/prometheus"

// metrics are the metrics of a [Controller].
type metrics struct {
	outcomes   *prometheus.CounterVec
	verified   *prometheus.CounterVec
	watch      *prometheus.CounterVec
	pods       *prometheus.GaugeVec
	uncaptured *prometheus.CounterVec
	held       *prometheus.GaugeVec
	ready      prometheus.Gauge
	duration   *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer, action Action) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meshcni_repair_" + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "meshcni_repair_" + name, Help: help}, labels)
	}
	m := &metrics{
		outcomes: counter("outcomes_total",
			"Attempts to deal with broken pods, by action, outcome and reason. An outcome that stays the same counts once a pod.",
			"action", "outcome", "reason"),
		verified: counter("verifications_total",
			"Comparisons of running pods' rules with the wanted ones, by result: intact, drifted, uncaptured (it never had any), restored, no-process, variant, refused, failed.",
			"result"),
		watch: counter("watch_errors_total", "Interruptions of the list and watch of pods, by kind: expired, forbidden, closed, other.", "kind"),
		pods:  gauge("pods", "Pods of this node, by state: known, candidate (checks its redirection), broken, drifted; captured, uncaptured and cannot-tell are those in the mesh, by what is known of their start.", "state"),
		uncaptured: counter("uncaptured_total",
			"Pods in the mesh that were found to run without their rules, by how it is known: not-called, passed-over, no-rules. A pod counts once for each.", "code"),
		held: gauge("held", "Whether deleting is held back, by reason.", "reason"),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "meshcni_repair_ready",
			Help: "Whether the repair controller works: 1 or 0.",
		}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "meshcni_repair_action_duration_seconds",
			Help:    "How long an attempt took, from reading the pod again to seeing the effect.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"action"}),
	}
	m.setHeld(nil)
	m.begin(action)
	if reg != nil {
		reg.MustRegister(m.outcomes, m.verified, m.watch, m.pods, m.uncaptured, m.held, m.ready, m.duration)
	}
	return m
}

// troubles are the outcomes that need attention, with their reasons.
var troubles = map[Outcome][]string{
	outcomeFailed:      {"error", "pod-refused", "refused", "timeout", "variant"},
	outcomeForbidden:   {"forbidden"},
	outcomeIneffective: {"fails-again", "gave-up"},
	outcomeUnverified:  {"no-label", "not-deleting", "rules-differ"},
	outcomeNoProcess:   {"no-process"},
	outcomeTooLate:     {string(CheckFailed)},
	outcomeDeferred:    {"node-budget", "cluster-budget"},
	outcomeBlocked:     {"disruption-budget"},
}

// begin creates the series that alerts watch. Prometheus does not count a first sample of 1 as an increase, so the series
// must exist before.
func (m *metrics) begin(action Action) {
	for _, kind := range []string{"expired", "forbidden", "closed", "other"} {
		m.watch.WithLabelValues(kind)
	}
	for _, result := range verifications {
		m.verified.WithLabelValues(string(result))
	}
	for _, code := range []CaptureCode{CaptureNotCalled, CapturePassedOver, CaptureNoRules} {
		m.uncaptured.WithLabelValues(string(code))
	}
	if action == ActionNone {
		return // found is the only outcome
	}
	for outcome, reasons := range troubles {
		for _, reason := range reasons {
			m.outcomes.WithLabelValues(string(action), string(outcome), reason)
		}
	}
}

func (m *metrics) setReady(err error) { m.ready.Set(oneIf(err == nil)) }

// setHeld shows why deletions are held back on the whole node; nil means that they are not.
func (m *metrics) setHeld(h *held) {
	for _, reason := range []heldReason{heldNotInstalled, heldShare} {
		m.held.WithLabelValues(string(reason)).Set(oneIf(h != nil && h.reason == reason))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
