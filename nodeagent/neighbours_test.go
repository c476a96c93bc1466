//go:build linux

package nodeagent

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair"
)

// eventsOf makes an API server for an agent on node n1, and returns the events that it is sent about the node.
func eventsOf(t *testing.T, o *Options) <-chan corev1.Event {
	t.Helper()
	events := make(chan corev1.Event, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e corev1.Event
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost && r.URL.Path == "/api/v1/namespaces/default/events" && json.Unmarshal(body, &e) == nil {
			assert.Equal(t, "Bearer t", r.Header.Get("Authorization"))
			events <- e
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	c := &o.Config
	c.KubernetesHost, c.KubernetesPort, c.KubernetesProtocol, c.Node = at.Hostname(), at.Port(), "http", "n1"
	return events
}

// Another mesh's plugin in the list is on the node's events, in /readyz, in the log, and what repair suspects of changed rules.
func TestOtherMeshIsTold(t *testing.T) {
	dir, o := node(t)
	file := filepath.Join(dir, "net.d/10-calico.conflist")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(calico, "]}", `,{"type":"linkerd-cni"}]}`, 1)), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bin/linkerd-cni"), []byte("#!/bin/true"), 0o755)) //nolint:gosec // a program
	events := eventsOf(t, &o)
	o.Config.HealthAddress, o.Config.Repair.Action = "127.0.0.1:0", repair.ActionLabel
	suspects := make(chan func() []string, 1)
	o.Config.Identity.Agent, o.open = "acme-node", func(r repair.Options) (controller, error) {
		suspects <- r.Suspects
		return fake(func(ctx context.Context) error { <-ctx.Done(); return nil }), nil
	}
	agent := start(t, o)
	select {
	case e := <-events:
		assert.Equal(t, []string{"OtherMesh", "Warning", "Node", "n1", "n1", "acme-node"},
			[]string{e.Reason, e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, string(e.InvolvedObject.UID), e.ReportingController})
		assert.Contains(t, e.Message, `"linkerd-cni" (Linkerd), before our entry in `+file)
	case <-time.After(netnstest.Patience):
		require.Fail(t, "no event")
	}
	require.Eventually(t, func() bool { return agent.Ready() == nil }, netnstest.Patience, 10*time.Millisecond)
	resp, err := http.Get(agent.base(t) + "/readyz") //nolint:noctx // a test's own
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Regexp(t, `^ok\nwarning: other-mesh: .*linkerd-cni.*uninstall the other`, string(body))
	assert.Contains(t, agent.log.String(), `"code":"other-mesh","plugin":"linkerd-cni"`)
	assert.Equal(t, []string{`"linkerd-cni" (Linkerd), before our entry in ` + file}, (<-suspects)())
	require.NoError(t, agent.end())
}
