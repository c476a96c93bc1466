//go:build linux

package nodeagent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// TestPodsAreServed: a running agent answers the plugin for its node's pods, and says what it does not serve.
func TestPodsAreServed(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	dir, o := node(t)
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
	o.API, o.Config.Node, o.Config.Repair, o.Config.PluginServiceAccount, o.Config.Plugin.Agent = &rest.Config{Host: server.URL}, "n1", repair.Options{}, "", netconf.AgentRequire
	agent := start(t, o)
	c := agentsock.Client{Path: filepath.Join(dir, "run", agentsock.Name)}
	cart := status.ID{Namespace: "shop", Name: "cart", UID: "u1"}
	var got agentsock.Pod
	require.Eventually(t, func() (ok bool) {
		var err error
		got, err = c.Pod(t.Context(), cart)
		return err == nil
	}, netnstest.Patience, 5*time.Millisecond)
	assert.Equal(t, "cart", got.Pod.Name)
	assert.Nil(t, got.Namespace, "the dialect does not read it")
	cart.UID = "another"
	_, err := c.Pod(t.Context(), cart)
	require.ErrorIs(t, err, agentsock.ErrUnknown)
	require.ErrorIs(t, c.Ready(t.Context()), agentsock.ErrUnsupported)
	states, err := c.Pods(t.Context())
	require.NoError(t, err)
	assert.Empty(t, states, "nobody looks for pods")
	_, err = c.Release(t.Context(), agentsock.ReleaseOptions{})
	require.ErrorIs(t, err, agentsock.ErrUnsupported)
	_, err = agent.Release(t.Context(), agentsock.ReleaseOptions{})
	require.ErrorIs(t, err, agentsock.ErrUnsupported)
	require.NoError(t, agent.end())
}
