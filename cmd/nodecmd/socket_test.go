//go:build linux

package nodecmd

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// TestPodsAreServed: a running agent answers the plugin for its node's pods, and says what it does not serve.
func TestPodsAreServed(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	dir, env := node(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		q := r.URL.Query()
		switch {
		case r.URL.Path != "/api/v1/pods" || q.Get("fieldSelector") != "spec.nodeName=n1" || q.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":400,"reason":"BadRequest"}`)
		case q.Get("watch") == "":
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"namespace":"shop","name":"cart","uid":"u1"}}]}`)
		default:
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"], env["KUBERNETES_SERVICE_PROTOCOL"] = at.Hostname(), at.Port(), "http"
	env["NODE_NAME"] = "n1"
	var stderr output
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan int, 1)
	app := Program{Env: lookup(env), Stderr: &stderr}
	go func() {
		done <- app.Main(ctx, []string{"run", "--metrics-address", "", "--health-address", "", "--detect=false", "--plugin-service-account", "", "--agent", "require"})
	}()
	c := agentsock.Client{Path: filepath.Join(dir, "run", agentsock.Name)}
	cart := attachment.Pod{Namespace: "shop", Name: "cart", UID: "u1"}
	var got agentsock.Pod
	require.Eventually(t, func() bool {
		got, err = c.Pod(t.Context(), cart)
		return err == nil
	}, netnstest.Patience, 5*time.Millisecond, "%v", &stderr)
	assert.Equal(t, "cart", got.Pod.Name)
	assert.Nil(t, got.Namespace, "the dialect does not read it")
	cart.UID = "another"
	_, err = c.Pod(t.Context(), cart)
	require.ErrorIs(t, err, agentsock.ErrUnknown)
	require.ErrorIs(t, c.Ready(t.Context()), agentsock.ErrUnsupported)
	states, err := c.Pods(t.Context())
	require.NoError(t, err)
	assert.Empty(t, states, "nobody looks for pods")
	_, err = c.Release(t.Context(), agentsock.Release{})
	require.ErrorIs(t, err, agentsock.ErrUnsupported)
	cancel()
	assert.Equal(t, 0, <-done, "%v", &stderr)

	_, err = parsed(map[string]string{}, "--agent=require", "--node-name=")
	require.ErrorContains(t, err, "agent=require needs node-name")
	_, err = parsed(map[string]string{}, "--agent=never")
	require.ErrorContains(t, err, `agent "never": not one of prefer, off, require`)
}
