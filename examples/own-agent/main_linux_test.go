package main

import (
	"context"
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
	node := t.TempDir()
	c := nodeConfig()
	c.BinSourceDir, c.CNIBinDirs = filepath.Join(node, "image"), []string{filepath.Join(node, "bin")}
	c.CNIConfDir, c.CNICacheDir = filepath.Join(node, "net.d"), filepath.Join(node, "cache")
	c.RunDir, c.ServiceAccountDir = filepath.Join(node, "run"), filepath.Join(node, "sa")
	c.KubernetesHost = "192.0.2.1"
	network := filepath.Join(c.CNIConfDir, "10-pods.conflist")
	for path, data := range map[string]string{
		filepath.Join(c.BinSourceDir, "meshcni"):     "#!/bin/true\n",
		filepath.Join(c.CNIBinDirs[0], "bridge"):     "#!/bin/true\n",
		filepath.Join(c.ServiceAccountDir, "token"):  "token",
		filepath.Join(c.ServiceAccountDir, "ca.crt"): "CA",
		network: `{"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(data), 0o700)) //nolint:gosec // some are programs
	}
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, installer.Options{Config: c}, &rest.Config{Host: api.URL}, "node-1") }()
	require.Eventually(t, func() bool {
		list, err := os.ReadFile(network)
		return err == nil && strings.Contains(string(list), `"type": "acme-cni"`)
	}, 10*time.Second, 5*time.Millisecond)
	assert.FileExists(t, filepath.Join(c.CNIBinDirs[0], "acme-cni"))
	cancel()
	require.NoError(t, <-ended)
	assert.FileExists(t, filepath.Join(c.CNIBinDirs[0], "acme-cni"), "the plugin stays, and pods wait")
}
