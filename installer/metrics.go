//go:build linux

package installer

import (
	"regexp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/meshcni/meshcni"
)

type metrics struct {
	installs, conflicts                   prometheus.Counter
	repairs, failures, reloads            *prometheus.CounterVec
	decisions, bypasses, outcomes, failed *prometheus.CounterVec
	records, dropped                      *prometheus.CounterVec
	tokenBound                            *prometheus.GaugeVec
	polling, tokenIssued, tokenExpires    prometheus.Gauge
	ownFile                               prometheus.Gauge
	add                                   prometheus.Histogram
	failing                               *failing

	mu      sync.Mutex
	reasons map[string]bool
}

func newMetrics(reg prometheus.Registerer, id meshcni.Identity) *metrics {
	auto := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: id.Metric(name), Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return auto.NewGaugeVec(prometheus.GaugeOpts{Name: id.Metric(name), Help: help}, labels)
	}
	m := &metrics{
		installs:     counter("installs_total", "Times the plugin was added to a file that had not had it.").WithLabelValues(),
		conflicts:    counter("fights_total", "Times another writer was found to remove our entry again and again.").WithLabelValues(),
		repairs:      counter("drift_repairs_total", "Repairs of what others changed, by cause.", "cause"),
		failures:     counter("failures_total", "Steps that failed, by step.", "step"),
		reloads:      counter("config_reloads_total", "Changes of the configuration file, by result (applied, refused).", "result"),
		decisions:    counter("plugin_decisions_total", "Decisions of plugins, by reason.", "reason"),
		bypasses:     counter("plugin_bypasses_total", "Pods that can bypass the mesh, by how (ipv4, ipv6, inbound, outbound, proxy-id, init-proxy-id, net-raw).", "bypass"),
		outcomes:     counter("plugin_outcomes_total", "Decisions of plugins, by CNI verb (ADD, CHECK, other) and outcome (passed, redirected, same, checked, unknown, failed, other).", "verb", "outcome"),
		failed:       counter("plugin_failures_total", "Runs of plugins that failed, by CNI verb (ADD, CHECK, DEL, GC, STATUS, other) and CNI error code.", "verb", "cni_code"),
		records:      counter("plugin_log_records_total", "Records that plugins sent, by level.", "level"),
		dropped:      counter("plugin_log_dropped_total", "Records of plugins that were not printed, by reason (queue-full, too-long).", "reason"),
		ownFile:      gauge("own_file", "1 while the agent keeps a list of its own.").WithLabelValues(),
		polling:      gauge("watch_polling", "1 when inotify cannot be used and files are polled.").WithLabelValues(),
		tokenIssued:  gauge("token_issued_timestamp_seconds", "When the plugin's token was issued, in Unix time; 0 until that is known.").WithLabelValues(),
		tokenBound:   gauge("token_bound", "1 for the kind of object with which that token ends (node, pod, none).", "object"),
		tokenExpires: gauge("token_expires_timestamp_seconds", "When that token expires, in Unix time; 0 when it does not say.").WithLabelValues(),
		add: auto.NewHistogram(prometheus.HistogramOpts{
			Name: id.Metric("plugin_add_duration_seconds"), Help: "How long ADD took in the plugin, as it reported.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		failing: newFailing(id),
		reasons: map[string]bool{},
	}
	if reg != nil {
		reg.MustRegister(m.failing)
	}
	m.begin()
	return m
}

// begin creates the series that are known beforehand. Prometheus does not see a series that starts at 1 as an increase, so
// the first event would go unnoticed.
func (m *metrics) begin() {
	for vec, values := range map[*prometheus.CounterVec][]string{
		m.bypasses: {"ipv4", "ipv6", "inbound", "outbound", "proxy-id", "init-proxy-id", "net-raw"},
		m.records:  {"DEBUG", "INFO", "WARN", "ERROR", "malformed"},
		m.dropped:  {"queue-full", "too-long"},
		m.reloads:  {"applied", "refused"},
		m.failures: {"run-dir", "lease", "log-socket", "uninstall", "token", string(opBinary), string(opKubeconfig), string(opCreate), string(opReplace), string(opMoveAside)},
	} {
		for _, v := range values {
			vec.WithLabelValues(v)
		}
	}
	for _, outcome := range []string{"passed", "redirected", "same", "failed"} {
		m.outcomes.WithLabelValues("ADD", outcome)
	}
	for _, code := range addCodes {
		m.failed.WithLabelValues("ADD", code)
	}
	m.failed.WithLabelValues("STATUS", "50")
}

// addCodes are the error codes with which an ADD usually fails.
var addCodes = []string{"7", "11", "50", "101", "999"}

// The label values of the plugins' metrics. Whatever else a record says becomes "other".
var (
	outcomeVerbs = []string{"ADD", "CHECK"}
	failureVerbs = []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
	outcomes     = []string{"passed", "redirected", "same", "checked", "unknown", "failed"}
	logLevels    = []string{"DEBUG", "INFO", "WARN", "ERROR"}
	// errorCodes are those of the CNI specification, of its library (999), and the plugin's own: see package plugin.
	errorCodes = []string{"1", "2", "3", "4", "5", "6", "7", "8", "11", "50", "51", "100", "101", "999"}
)

func oneOf(values []string, s string) string {
	if slices.Contains(values, s) {
		return s
	}
	return "other"
}

var stableCode = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// reason bounds the number of series that plugins can create.
func (m *metrics) reason(code string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(code) > 64 || !stableCode.MatchString(code) || !m.reasons[code] && len(m.reasons) >= 100 {
		return "other"
	}
	m.reasons[code] = true
	return code
}
