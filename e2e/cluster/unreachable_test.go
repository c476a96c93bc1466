//go:build long

package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUninstallOfUnreachableNode: the removal fails with the name of the node that is down, and the others are clean. Who does not
// want to know says so.
func TestUninstallOfUnreachableNode(t *testing.T) {
	c := sharedCluster(t)
	down := func(t *testing.T) {
		t.Cleanup(func() {
			_, _ = c.Try("kubectl", "delete", "node", "node-2", "--ignore-not-found")
			_, _ = c.Try("kubectl", "--namespace", system, "delete", "jobs,pods", "--all", "--force", "--grace-period=0")
		})
		c.Apply(t, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2", "labels": {"kubernetes.io/os": "linux"}}}`)
		c.Run(t, "kubectl", "patch", "node", "node-2", "--subresource=status", "--type=merge", "--patch",
			`{"status": {"capacity": {"pods": "9", "cpu": "9", "memory": "9Gi"}, "allocatable": {"pods": "9", "cpu": "9", "memory": "9Gi"}}}`)
	}
	step(t, c, "it is named", func(t *testing.T) {
		install(t, c, "--set", "uninstall.timeoutSeconds=15")
		down(t)
		said, err := c.Try("helm", "uninstall", release, "--namespace", system, "--wait")
		require.Error(t, err, said)
		assert.Contains(t, said, "node-2: ", "Helm prints what the Job says")
		assert.NotContains(t, said, nodeName+": ")
		assert.Equal(t, primary, fileText(t, confList), "the other node is clean")
		assert.Contains(t, c.Run(t, "kubectl", "--namespace", system, "logs", "job/meshcni-uninstall"), "the plugin may be left on these nodes")
		left := c.Run(t, "kubectl", "--namespace", system, "get", "daemonsets,roles,rolebindings,serviceaccounts", "-l", "app.kubernetes.io/instance="+release, "-o", "name")
		assert.Empty(t, strings.TrimSpace(left), "no rights are left, and nothing that runs on nodes")
	})
	step(t, c, "nobody asks", func(t *testing.T) {
		install(t, c)
		down(t)
		c.Run(t, "helm", "uninstall", release, "--namespace", system, "--wait", "--no-hooks")
		eventually(t, soon, "the agent has uninstalled its node", func() error {
			if text := fileText(t, confList); text != primary {
				return errors.New(text)
			}
			return nil
		})
	})
}
