//go:build linux

package installer

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// plugin sends records as the plugin does.
func plugin(t testing.TB, socket string) (*slog.Logger, net.Conn) {
	t.Helper()
	conn, err := net.Dial("unixgram", socket)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return slog.New(slog.NewJSONHandler(conn, nil)), conn
}

func TestPluginsRecordsArePrintedAndCounted(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	var out proctest.Buffer
	decisions := make(chan Decision, 9)
	a, _ := n.agent(func(o *Options) { o.PluginLog, o.OnDecision = &out, func(d Decision) { decisions <- d } })
	within(t, patience, "ready", ready(a))
	socket := filepath.Join(n.RunDir, "log.sock")
	info, err := os.Lstat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	log, raw := plugin(t, socket)
	log.Info("decision", "reason", "injected", "verb", "ADD", "outcome", "redirected", "duration_ms", 500, "pod", "a", "namespace", "b", "bypasses", []string{"ipv6", "proxy-id", "net-raw"}, "default_bypasses", []string{"net-raw"}, "address_families", []string{"ipv4"})
	log.Info("decision", "reason", "excluded-namespace", "verb", "ADD", "duration_ms", 1500)
	log.Error("something else", "reason", "ignored")
	_, err = raw.Write([]byte("no json\nat all"))
	require.NoError(t, err)
	log.Info("decision", "reason", `bad"label`, "verb", "DEL", "duration_ms", 3)
	log.Error("failed", "verb", "ADD", "code", 11)
	log.Error("failed", "verb", "ADD", "code", 12345)
	log.Error("failed", "verb", `x"`, "code", "50")
	log.Info("last")
	within(t, patience, "printed", func() bool { return strings.Contains(out.String(), `"last"`) })

	require.Len(t, decisions, 3, "of all records")
	assert.Equal(t, Decision{
		Pod: status.ID{Namespace: "b", Name: "a"}, Verb: "ADD", Outcome: "redirected", Reason: "injected", Bypasses: []string{"ipv6", "proxy-id", "net-raw"}, DefaultBypasses: []string{"net-raw"}, AddressFamilies: []ruleset.Family{ruleset.IPv4},
	}, <-decisions)
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, got, 9)
	for _, line := range got {
		assert.True(t, json.Valid([]byte(line)), line)
	}
	assert.Contains(t, got[0], `"pod":"a"`)
	metrics := scrape(t, a)
	for _, want := range []string{
		`meshcni_plugin_decisions_total{reason="injected"} 1`, `meshcni_plugin_decisions_total{reason="excluded-namespace"} 1`,
		`meshcni_plugin_decisions_total{reason="other"} 1`, `meshcni_plugin_add_duration_seconds_count 2`,
		`meshcni_plugin_add_duration_seconds_sum 2`, `meshcni_plugin_log_records_total{level="ERROR"} 4`,
		`meshcni_plugin_log_records_total{level="malformed"} 1`,
		`meshcni_plugin_bypasses_total{bypass="ipv6"} 1`, `meshcni_plugin_bypasses_total{bypass="proxy-id"} 1`,
		`meshcni_plugin_bypasses_total{bypass="net-raw"} 1`,
		`meshcni_plugin_bypasses_total{bypass="ipv4"} 0`, // an increase from nothing is none
		`meshcni_plugin_outcomes_total{outcome="redirected",verb="ADD"} 1`, `meshcni_plugin_outcomes_total{outcome="other",verb="ADD"} 1`,
		`meshcni_plugin_outcomes_total{outcome="other",verb="other"} 1`, `meshcni_plugin_outcomes_total{outcome="failed",verb="ADD"} 0`,
		`meshcni_plugin_failures_total{cni_code="11",verb="ADD"} 1`, `meshcni_plugin_failures_total{cni_code="other",verb="ADD"} 1`,
		`meshcni_plugin_failures_total{cni_code="other",verb="other"} 1`,
	} {
		assert.Contains(t, metrics, want+"\n")
	}
}

// A printer that hangs costs records, which are counted, and no plugin any time.
func TestLogSocketIsBounded(t *testing.T) {
	hang := make(chan struct{})
	out := writerFunc(func(p []byte) (int, error) { <-hang; return len(p), nil })
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, err := New(Options{Config: n.Config, PluginLog: out, Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	l := a.newLoop()
	require.NoError(t, os.MkdirAll(n.RunDir, 0o755))
	require.NoError(t, l.sock.ensure())
	_, conn := plugin(t, filepath.Join(n.RunDir, "log.sock"))
	record := []byte(`{"msg":"` + strings.Repeat("x", 32<<10) + `"}`)
	for range 1000 { // 32 MiB
		_, err = conn.Write(record)
		require.NoError(t, err)
	}
	within(t, patience, "counted", func() bool {
		return strings.Contains(scrape(t, a), `meshcni_plugin_log_dropped_total{reason="queue-full"} `)
	})
	assert.LessOrEqual(t, l.sock.queued.Load(), int64(maxQueued+len(record)))
	assert.LessOrEqual(t, len(l.sock.queue)*len(record), maxQueued)
	close(hang)
	l.end()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestReasonsAreBounded(t *testing.T) {
	a, err := New(Options{Config: nodeConfig("/n")})
	require.NoError(t, err)
	for i := range 1000 {
		a.m.reason(fmt.Sprintf("r%d", i))
	}
	assert.Len(t, a.m.reasons, 100)
	assert.Equal(t, "other", a.m.reason("r999"))
	assert.Equal(t, "r1", a.m.reason("r1"))
}

func TestReadyAndMetrics(t *testing.T) {
	n := newNode(t, nil)
	a, _ := n.agent(nil)
	within(t, patience, "looked", func() bool { return code(a) == "no-network" })
	require.ErrorContains(t, a.Ready(), "no-network: "+n.CNIConfDir)
	require.NoError(t, a.Healthy())
	metrics := scrape(t, a)
	assert.Contains(t, metrics, "meshcni_ready 0")
	assert.Contains(t, metrics, `meshcni_blocked{code="no-network"} 1`)
	assert.NotContains(t, metrics, "starting")

	n.put(n.conf("10-calico.conflist"), calicoList)
	within(t, patience, "ready", ready(a))
	within(t, patience, "counted", func() bool {
		metrics = scrape(t, a)
		return strings.Contains(metrics, "meshcni_ready 1\n") && strings.Contains(metrics, "meshcni_installs_total 1\n")
	})
	assert.NotContains(t, metrics, "meshcni_blocked{")
	require.NoError(t, os.Remove(n.binary()))
	within(t, patience, "repaired", func() bool {
		return strings.Contains(scrape(t, a), `meshcni_drift_repairs_total{cause="binary-missing"} 1`)
	})
}

func TestStuckLoopIsUnhealthy(t *testing.T) {
	a, err := New(Options{Config: nodeConfig("/n")})
	require.NoError(t, err)
	require.NoError(t, a.Healthy())
	a.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	assert.ErrorContains(t, a.Healthy(), "stuck for 2m")
}
