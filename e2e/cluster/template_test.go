package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// TestTemplate: the image and the chart of examples/mesh. Pods of that mesh are captured, one that was there before is found, and an uninstall
// leaves the node as it was.
func TestTemplate(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "template")
	s.mesh = mesh{"acme", "acme-proxy", 7001, 7001, 7002, nil}
	s.create(t, pod{name: "client", outside: true}, pod{name: "early"})
	s.ready(t, "client", "early")

	chart := filepath.Join(t.TempDir(), "chart")
	for to, from := range map[string]string{chart: "examples/mesh/chart", filepath.Join(chart, "charts", "meshcni"): "deploy/helm/meshcni"} {
		require.NoError(t, os.CopyFS(to, os.DirFS(filepath.Join(proctest.Root(), from))))
	}
	registry, tag, _ := strings.Cut(image.Acme, "/acme/acme:")
	t.Cleanup(func() {
		_, _ = c.Try("helm", "uninstall", "acme", "--namespace", "acme-system", "--wait", "--ignore-not-found")
	})
	c.Run(t, "helm", "install", "acme", chart, "--namespace", "acme-system", "--create-namespace", "--set", "meshcni.image.registry="+registry+",meshcni.image.tag="+tag)
	c.Run(t, "kubectl", "--namespace", "acme-system", "rollout", "status", "daemonset/acme-node", "--timeout=5m")
	assert.Contains(t, fileText(t, confList), `"acme-cni"`)

	step(t, c, "captured", func(t *testing.T) {
		s.create(t, pod{name: "cart"})
		s.ready(t, "cart")
		s.assertCaptured(t, "cart", "client")
		s.assertUncaptured(t, "early", "client")
	})
	step(t, c, "found", func(t *testing.T) {
		eventually(t, soon, "the agent finds the pod that was there before", func() error {
			said, _ := c.Try("kubectl", "--namespace", "acme-system", "exec", "daemonset/acme-node", "--", "/usr/local/bin/acme-node", "status")
			if !strings.Contains(said, "early") {
				return errors.New(said)
			}
			return nil
		})
	})
	s.kubectl(t, "delete", "deployments,pods", "--all", "--timeout=5m")
	c.Run(t, "helm", "uninstall", "acme", "--namespace", "acme-system", "--wait")
	assert.Empty(t, s.Changes(t))
}
