package nri

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/hook"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// agentAt runs an agent whose container runtime is at the socket, until the test ends. It asks the agent for a path.
func agentAt(t *testing.T, socket string) (ask func(path string) (string, error)) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"image/meshcni": "#!/bin/true", "bin/calico": "#!/bin/true", "sa/token": "t", "sa/ca.crt": "ca",
		"net.d/10-calico.conflist": `{"name":"k8s","cniVersion":"1.0.0","plugins":[{"type":"calico"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	c := nodeagent.DefaultConfig(meshcni.Identity{})
	c.BinSourceDir, c.CNIBinDirs, c.CNIConfDir, c.CNICacheDir = dir+"/image", []string{dir + "/bin"}, dir+"/net.d", dir+"/cache"
	c.RunDir, c.ServiceAccountDir, c.HealthAddress, c.MetricsAddress = dir+"/run", dir+"/sa", "", ""
	c.KubernetesHost, c.KubernetesPort, c.KubernetesProtocol, c.Node = "127.0.0.1", "1", "http", "n" // where nobody answers
	c.RuntimeHook, c.NRISocket = hook.Gate, socket
	a, err := nodeagent.New(nodeagent.Options{Dialects: builtin.All(), Config: c, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() { cancel(); assert.NoError(t, <-ended) })
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	return func(path string) (string, error) {
		resp, err := http.Get(s.URL + path)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
}

// runtimeAt is a runtime that does that with each plugin that registers, and then ends the connection.
func runtimeAt(t *testing.T, path string, then func(api.PluginService)) {
	t.Helper()
	listen(t, path, func(conn net.Conn) {
		mux := multiplex.Multiplex(conn)
		defer func() { _ = mux.Close() }()
		l, _ := mux.Listen(multiplex.RuntimeServiceConn)
		s, _ := ttrpc.NewServer()
		registered := make(chan struct{})
		api.RegisterRuntimeService(s, registrar(registered))
		go func() { _ = s.Serve(context.Background(), l) }()
		defer func() { _ = s.Close() }()
		select {
		case <-registered:
		case <-t.Context().Done():
			return
		}
		side, _ := mux.Open(multiplex.PluginServiceConn)
		then(api.NewPluginClient(ttrpc.NewClient(side)))
	})
}

// hurried is the context of a request that says to have ten microseconds for its answer, for which it waits nevertheless.
type hurried struct{ context.Context }

func (hurried) Deadline() (time.Time, bool) { return time.Now().Add(10 * time.Microsecond), true }

// What keeps the hook from its work is told where people and their alarms look: at /readyz, in the status that kubectl meshcni reads, and by metrics.
func TestAgentTells(t *testing.T) {
	said := &api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RequestTimeout: 2000}
	for code, c := range map[string]struct {
		runtime func(api.PluginService) // nil: there is none
		metric  string
	}{
		"runtime-hook-lost": {metric: "meshcni_runtime_hook_connected 0"},
		"runtime-hook-refused": {metric: "meshcni_runtime_hook_connected 0", runtime: func(plugin api.PluginService) {
			_, _ = plugin.Configure(t.Context(), said)
		}},
		"runtime-hook-late": {metric: `meshcni_runtime_hook_requests_total{outcome="late",request="StateChange"}`, runtime: func(plugin api.PluginService) {
			_, _ = plugin.Configure(t.Context(), said)
			_, _ = plugin.Synchronize(t.Context(), &api.SynchronizeRequest{})
			_, _ = plugin.StateChange(hurried{t.Context()}, &api.StateChangeEvent{Event: api.Event_RUN_POD_SANDBOX, Pod: pod("s")})
			<-t.Context().Done()
		}},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			path := socket(t)
			if c.runtime != nil {
				runtimeAt(t, path, c.runtime)
			}
			ask := agentAt(t, path)
			for _, from := range []string{"/readyz", agentapi.NodePath} {
				waittest.Eventually(t, from+" has the code", func() error {
					text, err := ask(from)
					if err == nil && !strings.Contains(text, code) {
						err = errors.New(text)
					}
					return err
				})
			}
			text, err := ask("/metrics")
			require.NoError(t, err)
			assert.Contains(t, text, c.metric)
			text, err = ask(agentapi.NodePath)
			require.NoError(t, err)
			assert.Contains(t, text, `"runtimeHook":"gate"`)
		})
	}
}
