package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// node is a node's directories in a temporary one.
type node struct{ dir string }

func (n node) path(at string) string { return filepath.Join(n.dir, at) }

func newNode(t *testing.T) node {
	t.Helper()
	n := node{t.TempDir()}
	for at, data := range map[string]string{
		"image/acme-cni": "#!/bin/true\n", "bin/bridge": "#!/bin/true\n", "sa/token": "token", "sa/ca.crt": "CA",
		"net.d/10-pods.conflist": `{"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(n.path(at)), 0o700))
		require.NoError(t, os.WriteFile(n.path(at), []byte(data), 0o700)) //nolint:gosec // some are programs
	}
	return n
}

// start runs the agent until the plugin is in the network's list. stop ends it.
func (n node) start(t *testing.T, args ...string) (log *proctest.Buffer, stop func()) {
	t.Helper()
	api := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(api.Close)
	host, port, _ := strings.Cut(strings.TrimPrefix(api.URL, "http://"), ":")
	args = append([]string{
		"run", "--bin-source-dir", n.path("image"), "--cni-bin-dir", n.path("bin"), "--cni-conf-dir", n.path("net.d"), "--cni-cache-dir", n.path("cache"),
		"--run-dir", n.path("run"), "--service-account-dir", n.path("sa"), "--kubernetes-service-protocol", "http", "--kubernetes-service-host", host,
		"--kubernetes-service-port", port, "--metrics-address=", "--health-address=",
	}, args...)
	log = &proctest.Buffer{}
	p := program()
	p.Stderr = log
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() { code <- p.Main(ctx, args) }()
	require.Eventually(t, func() bool {
		list, err := os.ReadFile(n.path("net.d/10-pods.conflist"))
		return err == nil && strings.Contains(string(list), `"acme-cni"`)
	}, netnstest.Patience, 5*time.Millisecond, "%s", log)
	assert.FileExists(t, n.path("bin/acme-cni"))
	return log, func() {
		cancel()
		require.Zero(t, <-code, "%s", log)
	}
}

// A node gets the plugin, and keeps it when the agent ends; meanwhile pods are repaired as the mesh checks them.
func TestRun(t *testing.T) {
	n := newNode(t)
	log, stop := n.start(t, "--repair=delete", "--node-name=node-1")
	list, err := os.ReadFile(n.path("net.d/10-pods.conflist"))
	require.NoError(t, err)
	assert.Contains(t, string(list), `"acme"`)
	stop()
	assert.FileExists(t, n.path("bin/acme-cni"), "the plugin stays, and pods wait")
	assert.Contains(t, log.String(), `"program":"acme-node","version":"v1.0.0"`)
	assert.NotContains(t, log.String(), "repair ended")
}

// Told to take the plugin back, the agent does not wait for its own pod to end.
func TestOwnPodKeepsNothing(t *testing.T) {
	n := newNode(t)
	_, stop := n.start(t, "--uninstall-on-exit")
	list, err := os.ReadFile(n.path("net.d/10-pods.conflist"))
	require.NoError(t, err)
	attachment, err := json.Marshal(map[string]any{ // as containerd leaves one
		"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "pods", "config": list,
		"netns":          "/var/run/netns/cni-6d4bd5a7-8f4b-7c1e-2b0a-0d7e0a5f9a11",
		"cniArgs":        [][2]string{{"K8S_POD_NAMESPACE", "acme-system"}, {"K8S_POD_NAME", "acme-node-x2x"}},
		"capabilityArgs": map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{}},
	})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(n.path("cache/results"), 0o700))
	require.NoError(t, os.WriteFile(n.path("cache/results/pods-c1-eth0"), attachment, 0o600))
	stop()
	assert.NoFileExists(t, n.path("bin/acme-cni"))
}

// Another mesh's dialect is refused by name; --version is the agent's own.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--version"}, 0, "acme-node v1.0.0\n"},
		{[]string{"install", "--dialect=istio"}, 2, `acme-node: dialect: unknown dialect "istio": known is acme`},
	} {
		var said proctest.Buffer
		p := program()
		p.Stdout, p.Stderr = &said, &said
		assert.Equal(t, c.code, p.Main(t.Context(), c.args))
		assert.Contains(t, said.String(), c.says)
	}
}
