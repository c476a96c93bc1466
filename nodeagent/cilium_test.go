//go:build linux

package nodeagent

import (
	"cmp"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestCilium: its settings are judged where they can be read; where not, the warning says what to look at.
func TestCilium(t *testing.T) {
	for name, tt := range map[string]struct {
		plugins, answer, want string
		status                int
	}{
		"another network":        {plugins: "calico", answer: `{"data":{"kube-proxy-replacement":"true"}}`},
		"beside kube-proxy":      {answer: `{"data":{"kube-proxy-replacement":"false","cni-exclusive":"false"}}`},
		"as it is to be":         {answer: `{"data":{"kube-proxy-replacement":"true","bpf-lb-sock-hostns-only":"true","cni-exclusive":"false"}}`},
		"without kube-proxy":     {answer: `{"data":{"kube-proxy-replacement":"strict"}}`, want: "without socketLB.hostNamespaceOnly=true"},
		"the sockets alone":      {answer: `{"data":{"bpf-lb-sock":"true","bpf-lb-sock-hostns-only":"false"}}`, want: "without socketLB.hostNamespaceOnly=true"},
		"exclusive":              {answer: `{"data":{"cni-exclusive":"true"}}`, want: "set cni.exclusive=false"},
		"no right":               {status: 403, answer: `{"kind":"Status"}`, want: "cannot be read (the API server says 403 Forbidden): see that ConfigMap cilium-config has bpf-lb-sock-hostns-only"},
		"elsewhere":              {status: 404, answer: `{"kind":"Status"}`, want: "404"},
		"something else answers": {answer: `<html>`, want: "the API server's answer is no ConfigMap"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "/api/v1/namespaces/kube-system/configmaps/cilium-config", r.URL.Path)
				w.WriteHeader(cmp.Or(tt.status, http.StatusOK))
				_, _ = io.WriteString(w, tt.answer)
			}))
			t.Cleanup(server.Close)
			plugins := []string{cmp.Or(tt.plugins, ciliumType), "meshcni"}
			c := Options{}.newCilium(func() []string { return plugins })
			c.api = func() (*api.Client, error) { return api.New(meshcni.Identity{}, &rest.Config{Host: server.URL}, "n1") }
			c.look(t.Context())
			got := strings.Join(news.Warnings(c.News()), "\n")
			assert.Equal(t, tt.want != "", got != "", got)
			assert.Contains(t, got, tt.want)
			plugins = []string{"calico"}
			c.look(t.Context())
			assert.Empty(t, c.News(), "it has gone")
		})
	}
}

// TestCiliumIsTold: the warning is in /readyz, the log, the metrics, and an event of the node, which stays ready.
func TestCiliumIsTold(t *testing.T) {
	dir, o := node(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "net.d/10-calico.conflist")))
	list := `{"cniVersion":"1.0.0","name":"cilium","plugins":[{"type":"cilium-cni"}]}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "net.d/05-cilium.conflist"), []byte(list), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bin/cilium-cni"), []byte("#!/bin/true"), 0o755)) //nolint:gosec // a program
	events := eventsOf(t, &o)
	o.Config.HealthAddress = "127.0.0.1:0"
	agent := start(t, o)
	select {
	case e := <-events:
		assert.Equal(t, []string{"CiliumSocketLb", "Warning"}, []string{e.Reason, e.Type})
		assert.Contains(t, e.Message, "the loaded list is Cilium's")
	case <-time.After(netnstest.Patience):
		require.Fail(t, "no event")
	}
	require.Eventually(t, func() bool { return agent.Ready() == nil }, netnstest.Patience, 10*time.Millisecond)
	resp, err := http.Get(agent.base(t) + "/readyz") //nolint:noctx // a test's own
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Regexp(t, `(?s)^ok\n.*warning: cilium-socket-lb: `, string(body))
	assert.Contains(t, agent.log.String(), `"code":"cilium-socket-lb"`)
	assert.Contains(t, strings.Join(news.Warnings(agent.Status().News), "\n"), "cilium-socket-lb: ")
	require.NoError(t, agent.end())
}
