//go:build linux

package installer

import (
	"regexp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	installs, fights       prometheus.Counter
	repairs, failures      *prometheus.CounterVec
	reloads, decisions     *prometheus.CounterVec
	records, dropped       *prometheus.CounterVec
	bypasses               *prometheus.CounterVec
	outcomes, failed       *prometheus.CounterVec
	blocked                *prometheus.GaugeVec
	ready, polling         prometheus.Gauge
	tokenAge, tokenExpires prometheus.Gauge
	add                    prometheus.Histogram

	mu        sync.Mutex
	reasons   map[string]bool
	blockedBy map[string]bool
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: "meshcni_" + name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "meshcni_" + name, Help: help})
	}
	m := &metrics{
		installs:  prometheus.NewCounter(counter("installs_total", "Times the plugin was put into a network list that had not had it.")),
		fights:    prometheus.NewCounter(counter("fights_total", "Times another writer was found to remove our entry again and again.")),
		repairs:   prometheus.NewCounterVec(counter("drift_repairs_total", "Repairs of what others changed, by cause."), []string{"cause"}),
		failures:  prometheus.NewCounterVec(counter("failures_total", "Steps that failed, by action."), []string{"action"}),
		reloads:   prometheus.NewCounterVec(counter("config_reloads_total", "Changes of the configuration file, by result (applied, refused)."), []string{"result"}),
		decisions: prometheus.NewCounterVec(counter("plugin_decisions_total", "Decisions that plugins on this node reported, by reason."), []string{"reason"}),
		bypasses:  prometheus.NewCounterVec(counter("plugin_bypasses_total", "Pods that leave a way past the mesh open, by which (ipv4, ipv6, proxy-id, net-raw)."), []string{"bypass"}),
		outcomes:  prometheus.NewCounterVec(counter("plugin_outcomes_total", "Decisions that plugins on this node reported, by CNI verb (ADD, CHECK, other) and outcome (passed, redirected, same, checked, unknown, failed, other)."), []string{"verb", "outcome"}),
		failed:    prometheus.NewCounterVec(counter("plugin_failures_total", "Runs of plugins on this node that failed, by CNI verb (ADD, CHECK, DEL, GC, STATUS, other) and error code of the CNI specification."), []string{"verb", "code"}),
		records:   prometheus.NewCounterVec(counter("plugin_log_records_total", "Records that plugins sent, by level."), []string{"level"}),
		dropped:   prometheus.NewCounterVec(counter("plugin_log_dropped_total", "Records of plugins that were not printed, by why (queue-full, too-long)."), []string{"why"}),
		blocked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "meshcni_blocked", Help: "1 for each reason why new pods on this node are not captured now, by its code; no series when they are.",
		}, []string{"code"}),
		ready:        gauge("ready", "1 when every new pod on this node will be captured."),
		polling:      gauge("watch_polling", "1 when inotify cannot be used and files are polled."),
		tokenAge:     gauge("token_age_seconds", "Age of the service account token in the plugin's kubeconfig."),
		tokenExpires: gauge("token_expires_timestamp_seconds", "When that token expires, in Unix time; 0 when it does not say."),
		add: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "meshcni_plugin_add_duration_seconds", Help: "How long ADD took in the plugin, as it reported.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		reasons: map[string]bool{},
	}
	reg.MustRegister(m.installs, m.fights, m.repairs, m.failures, m.reloads, m.decisions, m.bypasses, m.outcomes, m.failed, m.records,
		m.dropped, m.ready, m.blocked, m.polling, m.tokenAge, m.tokenExpires, m.add)
	m.begin()
	return m
}

// begin makes the series that are known beforehand: an increase from nothing to 1 is none to Prometheus, so the first event
// of a series that begins with it would be seen by nobody.
func (m *metrics) begin() {
	for vec, values := range map[*prometheus.CounterVec][]string{
		m.bypasses: {"ipv4", "ipv6", "proxy-id", "net-raw"},
		m.records:  {"DEBUG", "INFO", "WARN", "ERROR", "malformed"},
		m.dropped:  {"queue-full", "too-long"},
		m.reloads:  {"applied", "refused"},
		m.failures: {"run-dir", "lease", "log-socket", "uninstall", string(OpBinary), string(OpKubeconfig), string(OpCreate), string(OpReplace), string(OpMoveAside)},
	} {
		for _, v := range values {
			vec.WithLabelValues(v)
		}
	}
	for _, outcome := range []string{"passed", "redirected", "same", "failed"} {
		m.outcomes.WithLabelValues("ADD", outcome)
	}
	for _, code := range []string{"7", "11", "50", "101", "999"} {
		m.failed.WithLabelValues("ADD", code)
	}
	m.failed.WithLabelValues("STATUS", "50")
	m.setBlocked([]*Blocked{{Code: "starting"}}) // as an agent is made
}

// setBlocked shows why new pods are not captured; nothing when they are. A series that stays is not touched: a scrape
// meanwhile must find it.
func (m *metrics) setBlocked(blocked []*Blocked) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready.Set(map[bool]float64{true: 1}[len(blocked) == 0])
	is := map[string]bool{}
	for _, b := range blocked {
		is[b.Code] = true
		m.blocked.WithLabelValues(b.Code).Set(1)
	}
	for code := range m.blockedBy {
		if !is[code] {
			m.blocked.DeleteLabelValues(code)
		}
	}
	m.blockedBy = is
}

// The values that the labels of the plugin's metrics may have; what a record says otherwise is "other".
var (
	outcomeVerbs = []string{"ADD", "CHECK"}
	failureVerbs = []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
	outcomes     = []string{"passed", "redirected", "same", "checked", "unknown", "failed"}
	// errorCodes are those of the CNI specification, of its library (999), and the plugin's own: see package plugin.
	errorCodes = []string{"1", "2", "3", "4", "5", "6", "7", "8", "11", "50", "51", "100", "101", "999"}
)

func oneOf(values []string, s string) string {
	if slices.Contains(values, s) {
		return s
	}
	return "other"
}

var stableCode = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// reason bounds what a plugin can do to the number of time series.
func (m *metrics) reason(code string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !stableCode.MatchString(code) || !m.reasons[code] && len(m.reasons) >= 100 {
		return "other"
	}
	m.reasons[code] = true
	return code
}
