package kubectlcmd

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// kubelet forwards ports of this machine as an API server and its kubelet do, by SPDY: WebSockets are refused, as by an older one.
// It calls dial for the port that is asked for.
func kubelet(t *testing.T, dial func(port int) (net.Conn, error)) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/meshcni-system/pods/meshcni-node-x/portforward" {
			http.Error(w, "pods \"other\" is forbidden", http.StatusForbidden)
			return
		}
		if r.Header.Get("Upgrade") == "websocket" {
			http.Error(w, "no WebSockets here", http.StatusBadRequest)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		streams := make(chan httpstream.Stream, 2)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		})
		if conn == nil {
			return
		}
		defer func() { _ = conn.Close() }()
		failed, data := <-streams, <-streams
		if failed.Headers().Get(corev1.StreamType) != corev1.StreamTypeError {
			failed, data = data, failed
		}
		port, _ := strconv.Atoi(data.Headers().Get(corev1.PortHeader))
		to, err := dial(port)
		if err != nil {
			_, _ = io.WriteString(failed, err.Error())
			_ = failed.Close()
			<-conn.CloseChan()
			return
		}
		go func() { _, _ = io.Copy(to, data) }()
		_, _ = io.Copy(data, to)
		_, _ = data.Close(), failed.Close()
		<-conn.CloseChan()
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

// TestForward: an agent is asked over a forwarded port, and what goes wrong on the way is said.
func TestForward(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Host + r.URL.Path
		switch r.URL.Path {
		case agentapi.NodePath:
			_ = json.NewEncoder(w).Encode(agentapi.Node{Node: "a", News: []status.News{{Text: strings.Repeat("x", 1<<20)}}})
		case "/busy":
			http.Error(w, "the agent is busy", http.StatusServiceUnavailable)
		case "/long":
			_, _ = io.WriteString(w, strings.Repeat(" ", agentapi.MaxAnswer+1))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(served.Close)
	ports := make(chan int, 1)
	f := forwarder{kubelet(t, func(port int) (net.Conn, error) {
		ports <- port
		return net.Dial("tcp", served.Listener.Addr().String())
	})}
	a := agents.Agent{Namespace: "meshcni-system", Name: "meshcni-node-x", Port: 8000}
	for path, want := range map[string]string{
		agentapi.NodePath: "", "/busy": "it answered 503 Service Unavailable: the agent is busy", "/long": "the answer is longer than 4 MiB", "/v1/old": agentapi.ErrNoAPI.Error(),
	} {
		var n agentapi.Node
		err := f.get(t.Context(), a, path, &n)
		assert.Equal(t, 8000, <-ports)
		assert.Equal(t, "127.0.0.1:8000"+path, <-asked)
		if want != "" {
			require.EqualError(t, err, want, path)
			continue
		}
		require.NoError(t, err, path)
		assert.Equal(t, "a", n.Node)
		assert.Len(t, n.News[0].Text, 1<<20, "all of it")
	}

	refused := forwarder{kubelet(t, func(int) (net.Conn, error) { return nil, io.ErrClosedPipe })}
	require.EqualError(t, refused.get(t.Context(), a, agentapi.NodePath, nil), "forward port 8000: io: read/write on closed pipe")
	err := f.get(t.Context(), agents.Agent{Namespace: "meshcni-system", Name: "other", Port: 8000}, agentapi.NodePath, nil)
	require.ErrorContains(t, err, "is forbidden")

	silent, accepted := net.Pipe()
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	hangs := forwarder{kubelet(t, func(int) (net.Conn, error) {
		cancel() // nobody waits for the answer any more
		return accepted, nil
	})}
	require.Error(t, hangs.get(ctx, a, agentapi.NodePath, nil))
}
