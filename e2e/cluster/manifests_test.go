package cluster_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// TestManifests: the plain manifests do what the chart does.
func TestManifests(t *testing.T) {
	c := sharedCluster(t)
	text, err := os.ReadFile(filepath.Join(proctest.Root(), "deploy", "manifests", "install.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(text), "registry.invalid/")
	file := filepath.Join(t.TempDir(), "install.yaml")
	require.NoError(t, os.WriteFile(file, bytes.ReplaceAll(text, []byte("registry.invalid/"), []byte(image.Registry+"/")), 0o600))
	s := newShop(t, c, "plain")
	s.create(t, pod{name: "client", outside: true})

	t.Cleanup(func() { _, _ = c.Try("kubectl", "delete", "--ignore-not-found", "-f", file, "--timeout=5m") })
	c.ExplainFailure(t)
	c.Run(t, "kubectl", "apply", "-f", file)
	rolledOut(t, c)
	s.create(t, pod{name: "cart", validated: true})
	s.ready(t, "cart", "client")
	s.assertCaptured(t, "cart", "client")
	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	s.assertNothingLeft(t)

	c.Run(t, "kubectl", "delete", "-f", file, "--timeout=5m")
	assertClean(t, c)
}
