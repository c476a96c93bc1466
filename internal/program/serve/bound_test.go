package serve_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// started serves on an address of the loopback interface, and returns it.
func started(t *testing.T, local http.Handler) string {
	t.Helper()
	var log proctest.Buffer
	stop, err := serve.Start(serve.Options{
		HealthAddress: "127.0.0.1:0", Metrics: registry(), Log: slog.New(slog.NewTextHandler(&log, nil)), Local: local,
	})
	require.NoError(t, err)
	t.Cleanup(stop)
	address := regexp.MustCompile(`msg=serving address=(\S+)`)
	require.Eventually(t, func() bool { return address.MatchString(log.String()) }, netnstest.Patience, time.Millisecond)
	return address.FindStringSubmatch(log.String())[1]
}

// TestConnectionsAreBounded: connections that say nothing, or half a request, are few, and keep nobody from asking whether the agent is well.
func TestConnectionsAreBounded(t *testing.T) {
	for name, say := range map[string]string{"nothing": "", "half a request": "GET /healthz HTTP/1.1\r\nHost: a\r\nX: ", "and then idle": "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			address := started(t, nil)
			const many, most = 400, 64
			ended := make(chan struct{}, many)
			var reading sync.WaitGroup
			conns := make([]net.Conn, many)
			for i := range conns {
				conn, err := net.Dial("tcp", address)
				require.NoError(t, err)
				conns[i] = conn
				_, _ = io.WriteString(conn, say)
				reading.Go(func() {
					_, _ = io.Copy(io.Discard, conn)
					ended <- struct{}{}
				})
			}
			for range many - most {
				<-ended
			}
			status, body := get(t, "http://"+address+"/healthz")
			assert.Equal(t, []any{http.StatusOK, "ok\n"}, []any{status, body})
			for _, conn := range conns {
				_ = conn.Close()
			}
			reading.Wait()
		})
	}
}

// TestRequestsAreBounded: requests whose answers take long keep room for /healthz and /readyz, and others are told at once.
func TestRequestsAreBounded(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 100)
	address := started(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-release
	}))
	var asking sync.WaitGroup
	for range 16 {
		asking.Go(func() {
			r, err := client.Get("http://" + address + "/v1/node")
			if assert.NoError(t, err) {
				assert.Equal(t, http.StatusOK, r.StatusCode)
				_ = r.Body.Close()
			}
		})
	}
	for range 16 {
		<-entered
	}
	for range 5 {
		status, body := get(t, "http://"+address+"/v1/node")
		assert.Equal(t, http.StatusServiceUnavailable, status, body)
		for _, path := range []string{"/healthz", "/readyz"} {
			status, body = get(t, "http://"+address+path)
			assert.Equal(t, http.StatusOK, status, body)
		}
	}
	for range 200 { // crowding does not end a request that is in work
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
	}
	status, _ := get(t, "http://"+address+"/healthz")
	assert.Equal(t, http.StatusOK, status)
	close(release)
	asking.Wait()
}
