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
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/installer"
)

// A node in a temporary directory gets the plugin, and keeps it when the agent ends.
func TestRun(t *testing.T) {
	c := testNode(t)
	stop := start(t, installer.Options{Config: c})
	stop()
	assert.FileExists(t, filepath.Join(c.CNIBinDirs[0], "acme-cni"), "the plugin stays, and pods wait")
}

// Told to take the plugin back, the agent does not wait for its own pod to end.
func TestOwnPodKeepsNothing(t *testing.T) {
	c := testNode(t)
	stop := start(t, installer.Options{Config: c, UninstallOnExit: true})
	list, err := os.ReadFile(filepath.Join(c.CNIConfDir, "10-pods.conflist"))
	require.NoError(t, err)
	attachment, err := json.Marshal(map[string]any{ // as containerd leaves one
		"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "pods", "config": list,
		"netns":          "/var/run/netns/cni-6d4bd5a7-8f4b-7c1e-2b0a-0d7e0a5f9a11",
		"cniArgs":        [][2]string{{"K8S_POD_NAMESPACE", "acme-system"}, {"K8S_POD_NAME", "acme-node-x2x"}},
		"capabilityArgs": map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{}},
	})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(c.CNICacheDir, "results"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(c.CNICacheDir, "results", "pods-c1-eth0"), attachment, 0o600))
	stop()
	assert.NoFileExists(t, filepath.Join(c.CNIBinDirs[0], "acme-cni"))
}

func testNode(t *testing.T) installer.Config {
	t.Helper()
	node := t.TempDir()
	c := nodeConfig()
	c.BinSourceDir, c.CNIBinDirs = filepath.Join(node, "image"), []string{filepath.Join(node, "bin")}
	c.CNIConfDir, c.CNICacheDir = filepath.Join(node, "net.d"), filepath.Join(node, "cache")
	c.RunDir, c.ServiceAccountDir = filepath.Join(node, "run"), filepath.Join(node, "sa")
	c.KubernetesHost = "192.0.2.1"
	for path, data := range map[string]string{
		filepath.Join(c.BinSourceDir, "acme-cni"):       "#!/bin/true\n",
		filepath.Join(c.CNIBinDirs[0], "bridge"):        "#!/bin/true\n",
		filepath.Join(c.ServiceAccountDir, "token"):     "token",
		filepath.Join(c.ServiceAccountDir, "ca.crt"):    "CA",
		filepath.Join(c.CNIConfDir, "10-pods.conflist"): `{"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(data), 0o700)) //nolint:gosec // some are programs
	}
	return c
}

// start runs the agent until the plugin is in the network's list. stop ends it.
func start(t *testing.T, o installer.Options) (stop func()) {
	t.Helper()
	api := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(api.Close)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o, &rest.Config{Host: api.URL}, "node-1", "127.0.0.1:0") }()
	require.Eventually(t, func() bool {
		list, err := os.ReadFile(filepath.Join(o.Config.CNIConfDir, "10-pods.conflist"))
		return err == nil && strings.Contains(string(list), `"type": "acme-cni"`)
	}, 10*time.Second, 5*time.Millisecond)
	assert.FileExists(t, filepath.Join(o.Config.CNIBinDirs[0], "acme-cni"))
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}
