package serve_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

var client = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := client.Get(url)
	require.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(body)
}

func registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector())
	return r
}

func TestServe(t *testing.T) {
	var log proctest.Buffer
	var stuck, waiting error
	stop, err := serve.Start(serve.Options{
		HealthAddress: "127.0.0.1:0", MetricsAddress: "localhost:0", Metrics: registry(), Log: slog.New(slog.NewTextHandler(&log, nil)),
		Healthy: func() error { return stuck }, Ready: func() error { return waiting },
	})
	require.NoError(t, err)
	defer stop()
	address := regexp.MustCompile(`msg=serving address=(\S+)`)
	require.Eventually(t, func() bool { return len(address.FindAllString(log.String(), -1)) == 2 }, netnstest.Patience, time.Millisecond)
	metrics := 0
	for _, m := range address.FindAllStringSubmatch(log.String(), -1) {
		url := "http://" + m[1]
		status, _ := get(t, url+"/metrics")
		if status == http.StatusOK {
			metrics++
		}
		stuck, waiting = nil, nil
		status, body := get(t, url+"/healthz")
		assert.Equal(t, []any{http.StatusOK, "ok\n"}, []any{status, body})
		status, body = get(t, url+"/readyz")
		assert.Equal(t, []any{http.StatusOK, "ok\n"}, []any{status, body})
		stuck, waiting = errors.New("stuck"), errors.New("no-network: none")
		status, body = get(t, url+"/healthz")
		assert.Equal(t, []any{http.StatusServiceUnavailable, "stuck\n"}, []any{status, body})
		status, body = get(t, url+"/readyz")
		assert.Equal(t, []any{http.StatusServiceUnavailable, "no-network: none\n"}, []any{status, body})
	}
	assert.Equal(t, 1, metrics, "of the two addresses one has metrics")
}

// TestAddressInUse: an address that another process has is waited for.
func TestAddressInUse(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o := serve.Options{HealthAddress: other.Addr().String(), MetricsAddress: other.Addr().String(), Metrics: registry(), Log: slog.New(slog.DiscardHandler)}
	stop, err := serve.Start(o)
	require.NoError(t, err)
	stop() // while it waits
	stop, err = serve.Start(o)
	require.NoError(t, err)
	defer stop()
	require.NoError(t, other.Close())
	require.Eventually(t, func() bool {
		r, err := client.Get("http://" + o.HealthAddress + "/metrics")
		if err != nil {
			return false
		}
		return assert.NoError(t, r.Body.Close()) && r.StatusCode == http.StatusOK
	}, netnstest.Patience, 10*time.Millisecond)
}

// TestAddressNotThere: an address that the host does not have keeps no agent from its work, nor from its other address.
func TestAddressNotThere(t *testing.T) {
	var log proctest.Buffer
	stop, err := serve.Start(serve.Options{
		HealthAddress: "192.0.2.1:8000", MetricsAddress: "127.0.0.1:0", Metrics: registry(), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.NoError(t, err)
	defer stop()
	assert.Contains(t, log.String(), "192.0.2.1:8000")
	address := regexp.MustCompile(`msg=serving address=(\S+)`)
	require.Eventually(t, func() bool { return address.MatchString(log.String()) }, netnstest.Patience, time.Millisecond)
	status, _ := get(t, "http://"+address.FindStringSubmatch(log.String())[1]+"/metrics")
	assert.Equal(t, http.StatusOK, status)
}

func TestAddressThatIsNone(t *testing.T) {
	_, err := serve.Start(serve.Options{HealthAddress: "127.0.0.1:0", MetricsAddress: "nowhere:x", Metrics: registry(), Log: slog.New(slog.DiscardHandler)})
	assert.ErrorContains(t, err, "--metrics-address")
}
