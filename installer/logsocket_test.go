//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/proctest"
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
	a, _ := n.agent(func(o *Options) { o.PluginLog = &out })
	within(t, patience, "ready", ready(a))
	socket := filepath.Join(n.RunDir, "log.sock")
	info, err := os.Lstat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	log, raw := plugin(t, socket)
	log.Info("decision", "reason", "injected", "verb", "ADD", "outcome", "redirected", "duration_ms", 500, "pod", "a", "namespace", "b", "bypasses", []string{"ipv6", "proxy-id", "net-raw"})
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
		`meshcni_plugin_failures_total{code="11",verb="ADD"} 1`, `meshcni_plugin_failures_total{code="other",verb="ADD"} 1`,
		`meshcni_plugin_failures_total{code="other",verb="other"} 1`,
	} {
		assert.Contains(t, metrics, want+"\n")
	}
}

// A printer that hangs costs records, which are counted, and no plugin any time.
func TestLogSocketIsBounded(t *testing.T) {
	hang := make(chan struct{})
	out := writerFunc(func(p []byte) (int, error) { <-hang; return len(p), nil })
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, stop := n.agent(func(o *Options) { o.PluginLog, o.Log = out, nil })
	within(t, patience, "ready", ready(a))
	_, conn := plugin(t, filepath.Join(n.RunDir, "log.sock"))
	record := []byte(`{"msg":"` + strings.Repeat("x", 32<<10) + `"}`)
	for range 1000 { // 32 MiB
		_, err := conn.Write(record)
		require.NoError(t, err)
	}
	within(t, patience, "counted", func() bool {
		return strings.Contains(scrape(t, a), `meshcni_plugin_log_dropped_total{why="queue-full"} `)
	})
	assert.LessOrEqual(t, a.sock.queued.Load(), int64(maxQueued+len(record)))
	close(hang)
	stop()
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

func TestHealthReadyMetrics(t *testing.T) {
	n := newNode(t, nil)
	a, _ := n.agent(func(o *Options) { o.HealthAddress, o.MetricsAddress = "127.0.0.1:0", "localhost:0" })
	within(t, patience, "listening", func() bool { return len(a.Addresses()) == 2 })
	within(t, patience, "looked", func() bool { return code(a) == "no-network" })
	get := func(what, path string) (int, string) {
		t.Helper()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Get("http://" + a.Addresses()[what] + path)
		require.NoError(t, err)
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(body)
	}
	status, body := get("health", "/readyz")
	assert.Equal(t, 503, status)
	assert.Contains(t, body, "no-network: "+n.CNIConfDir)
	status, _ = get("health", "/healthz")
	assert.Equal(t, 200, status)
	status, body = get("metrics", "/metrics")
	assert.Equal(t, 200, status)
	assert.Contains(t, body, "meshcni_ready 0")
	assert.Contains(t, body, `meshcni_blocked{code="no-network"} 1`)
	assert.NotContains(t, body, "starting")

	n.put(n.conf("10-calico.conflist"), calicoList)
	within(t, patience, "ready", ready(a))
	status, _ = get("health", "/readyz")
	assert.Equal(t, 200, status)
	var why error
	a.AddReadiness(func() error { return why })
	status, _ = get("health", "/readyz")
	assert.Equal(t, 200, status)
	why = errors.New("repair: pods is forbidden")
	status, body = get("health", "/readyz")
	assert.Equal(t, 503, status)
	assert.Contains(t, body, "pods is forbidden")
	require.NoError(t, a.Ready(), "the installation has nothing to do with it")
	why = nil
	within(t, patience, "counted", func() bool {
		_, body = get("metrics", "/metrics")
		return strings.Contains(body, "meshcni_ready 1") && strings.Contains(body, "meshcni_installs_total 1")
	})
	assert.NotContains(t, body, "meshcni_blocked{")
	require.NoError(t, os.Remove(n.binary()))
	within(t, patience, "repaired", func() bool {
		_, body = get("metrics", "/metrics")
		return strings.Contains(body, `meshcni_drift_repairs_total{cause="binary-missing"} 1`)
	})
}

func TestStuckLoopIsUnhealthy(t *testing.T) {
	a, err := New(Options{Config: nodeConfig("/n")})
	require.NoError(t, err)
	a.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	mux := http.NewServeMux()
	a.handleHealth(mux)
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "/healthz", nil)
	require.NoError(t, err)
	w := &recorder{header: http.Header{}}
	mux.ServeHTTP(w, r)
	assert.Equal(t, 503, w.code)
}

type recorder struct {
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }
func (r *recorder) WriteHeader(code int)        { r.code = code }
