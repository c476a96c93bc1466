//go:build linux

package installer

import (
	"regexp"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	installs, fights       prometheus.Counter
	repairs, failures      *prometheus.CounterVec
	reloads, decisions     *prometheus.CounterVec
	records, dropped       *prometheus.CounterVec
	bypasses               *prometheus.CounterVec
	ready, polling         prometheus.Gauge
	tokenAge, tokenExpires prometheus.Gauge
	add                    prometheus.Histogram

	mu      sync.Mutex
	reasons map[string]bool
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: "meshcni_" + name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "meshcni_" + name, Help: help})
	}
	m := &metrics{
		installs:     prometheus.NewCounter(counter("installs_total", "Times the plugin was put into a network list that had not had it.")),
		fights:       prometheus.NewCounter(counter("fights_total", "Times another writer was found to remove our entry again and again.")),
		repairs:      prometheus.NewCounterVec(counter("drift_repairs_total", "Repairs of what others changed, by cause."), []string{"cause"}),
		failures:     prometheus.NewCounterVec(counter("failures_total", "Steps that failed, by action."), []string{"action"}),
		reloads:      prometheus.NewCounterVec(counter("config_reloads_total", "Changes of the configuration file, by result (applied, refused)."), []string{"result"}),
		decisions:    prometheus.NewCounterVec(counter("plugin_decisions_total", "Decisions that plugins on this node reported, by reason."), []string{"reason"}),
		bypasses:     prometheus.NewCounterVec(counter("plugin_bypasses_total", "Pods that leave a way past the mesh open, by which (ipv4, ipv6, proxy-id)."), []string{"bypass"}),
		records:      prometheus.NewCounterVec(counter("plugin_log_records_total", "Records that plugins sent, by level."), []string{"level"}),
		dropped:      prometheus.NewCounterVec(counter("plugin_log_dropped_total", "Records of plugins that were not printed, by why (queue-full, too-long)."), []string{"why"}),
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
	reg.MustRegister(m.installs, m.fights, m.repairs, m.failures, m.reloads, m.decisions, m.bypasses, m.records, m.dropped,
		m.ready, m.polling, m.tokenAge, m.tokenExpires, m.add)
	return m
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
