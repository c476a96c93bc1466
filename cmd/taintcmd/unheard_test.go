package taintcmd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestUnheardOf: a controller whose watch of nodes is cut off from a real API server, and not refreshing the Lease, says so on /readyz, as a
// metric, in its log and in an event of the DaemonSet, and that it is over.
func TestUnheardOf(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, kubetest.Servers)
	s := kubetest.Own(t, kubetest.Options{})
	config, err := s.Config("")
	require.NoError(t, err)
	behind, err := url.Parse(s.URL())
	require.NoError(t, err)
	var cut atomic.Bool
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.FlushInterval = -1
	proxy.Transport, err = rest.TransportFor(config)
	require.NoError(t, err)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cut.Load() && r.URL.Path == "/api/v1/nodes" {
			http.Error(w, "cut", http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	defer front.CloseClientConnections()
	account := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte(kubetest.AdminToken), 0o600))
	_, apiPort, _ := strings.Cut(strings.TrimPrefix(front.URL, "http://"), ":")

	port, err := proctest.FreePort()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	var log proctest.Buffer
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- Program{Stderr: &log, unheard: time.Millisecond}.Main(ctx, []string{
			"run", "--kubernetes-service-host=127.0.0.1", "--kubernetes-service-port=" + apiPort, "--kubernetes-service-protocol=http",
			"--service-account-dir=" + account, "--identity=a", "--pod-namespace=default", "--metrics-address=" + address, "--health-address=" + address,
		})
	}()
	defer func() { stop(); assert.Equal(t, cli.ExitOK, <-ended, &log) }()
	says := func(path, what string) {
		t.Helper()
		waittest.Eventually(t, path+" says "+what, func() error {
			r, err := http.Get("http://" + address + path)
			if err != nil {
				return err
			}
			defer func() { _ = r.Body.Close() }()
			text, err := io.ReadAll(r.Body)
			if !strings.Contains(string(text), what) {
				return fmt.Errorf("it says %q, %w", text, err)
			}
			return nil
		})
	}
	says("/metrics", "meshcni_taint_leader 1\n")
	says("/readyz", "ok\n")
	says("/metrics", "meshcni_watch_outdated 0\n")

	cut.Store(true)
	front.CloseClientConnections()
	says("/readyz", "ok\nwarning: nodes-outdated: the API server has told nothing of nodes or agents since ")
	says("/metrics", "meshcni_watch_outdated 1\n")
	admin := s.Admin(t)
	waittest.Eventually(t, "the DaemonSet has the event", func() error {
		events := &corev1.EventList{}
		admin.Do(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, events)
		for _, e := range events.Items {
			if e.Reason == "AgentTaintOutdated" && e.InvolvedObject.Kind == "DaemonSet" && e.InvolvedObject.Name == "meshcni-node" && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("there are %d events", len(events.Items))
	})
	assert.Contains(t, log.String(), `"code":"nodes-outdated"`)

	cut.Store(false)
	says("/metrics", "meshcni_watch_outdated 0\n")
	says("/metrics", "meshcni_taint_leader 1\n")
}
