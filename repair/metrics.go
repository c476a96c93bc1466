package repair

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what [Controller] counts.
type metrics struct {
	outcomes *prometheus.CounterVec
	verified *prometheus.CounterVec
	watch    *prometheus.CounterVec
	pods     *prometheus.GaugeVec
	breaker  *prometheus.GaugeVec
	ready    prometheus.Gauge
	duration *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer, action Action) *metrics {
	m := &metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meshcni_repair_outcomes_total",
			Help: "What came of broken pods, by action, outcome and reason. An outcome that stays the same while it is waited out counts once a pod.",
		}, []string{"action", "outcome", "reason"}),
		verified: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meshcni_repair_verifications_total",
			Help: "Comparisons of running pods' rules with the wanted ones, by result: intact, drifted, restored, no-process, variant, refused, failed.",
		}, []string{"result"}),
		watch: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meshcni_repair_watch_errors_total",
			Help: "Interruptions of the list and watch of pods, by kind: expired, forbidden, closed, other.",
		}, []string{"kind"}),
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "meshcni_repair_pods",
			Help: "Pods of this node, by state: known, candidate (checks its redirection), broken, drifted.",
		}, []string{"state"}),
		breaker: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "meshcni_repair_held",
			Help: "Whether deleting is held back, by reason.",
		}, []string{"reason"}),
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
	for _, reason := range []string{heldNotInstalled, heldShare} {
		m.breaker.WithLabelValues(reason)
	}
	m.begin(action)
	if reg != nil {
		reg.MustRegister(m.outcomes, m.verified, m.watch, m.pods, m.breaker, m.ready, m.duration)
	}
	return m
}

// troubles are the outcomes, with their reasons, that somebody should hear of.
var troubles = map[Outcome][]string{
	OutcomeFailed:      {"error", "pod-refused", "refused", "timeout", "variant"},
	OutcomeForbidden:   {"forbidden"},
	OutcomeIneffective: {"fails-again", "gave-up"},
	OutcomeUnverified:  {"no-label", "not-deleting", "rules-differ"},
	OutcomeNoProcess:   {"no-process"},
	OutcomeTooLate:     {string(CheckFailed)},
	OutcomeDeferred:    {"node-budget", "cluster-budget"},
	OutcomeBlocked:     {"disruption-budget"},
}

// begin makes the series that alerts watch, as far as they are known beforehand: an increase from nothing to 1 is none to
// Prometheus, so the first event of a series that begins with it would be seen by nobody.
func (m *metrics) begin(action Action) {
	for _, kind := range []string{"expired", "forbidden", "closed", "other"} {
		m.watch.WithLabelValues(kind)
	}
	for _, result := range []string{verifiedIntact, verifiedDrifted, verifiedRestored, verifiedNoProcess, verifiedVariant, verifiedRefused, verifiedFailed} {
		m.verified.WithLabelValues(result)
	}
	if action == ActionNone || action == "" {
		return // found is all there is
	}
	for outcome, reasons := range troubles {
		for _, reason := range reasons {
			m.outcomes.WithLabelValues(string(action), string(outcome), reason)
		}
	}
}

func (m *metrics) setReady(err error) {
	if err != nil {
		m.ready.Set(0)
		return
	}
	m.ready.Set(1)
}

// setBreaker shows why deleting is held back; nil for not at all.
func (m *metrics) setBreaker(h *held) {
	for _, reason := range []string{heldNotInstalled, heldShare} {
		v := 0.0
		if h != nil && h.code == reason {
			v = 1
		}
		m.breaker.WithLabelValues(reason).Set(v)
	}
}
