package cluster_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// away waits until the node has no agent that runs, while the plugin is installed there.
func away(t *testing.T, c *cluster) {
	t.Helper()
	eventually(t, 60*time.Second, "no agent runs", func() error {
		running := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node",
			"-o", "jsonpath={.items[*].status.containerStatuses[*].state.running}{.items[?(@.metadata.deletionTimestamp)].metadata.name}")
		if running != "" {
			return errors.New(running)
		}
		return nil
	})
	require.Contains(t, fileText(t, confList), `"meshcni"`, "the plugin is left")
}

// TestUninstallWithoutAgent: a node that has no agent when the release is uninstalled is left as it was found, all the same.
func TestUninstallWithoutAgent(t *testing.T) {
	c := sharedCluster(t)
	for name, leave := range map[string]func(t *testing.T){
		"sent to other nodes": func(t *testing.T) {
			c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "nodeSelector.nowhere=yes")
		},
		"cannot start any more": func(t *testing.T) {
			c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "extraArgs={--nope},updateStrategy.type=OnDelete")
			c.Run(t, "kubectl", "--namespace", system, "delete", "pod", "-l", "app.kubernetes.io/component=node")
			eventually(t, 60*time.Second, "the new agent has failed", func() error {
				if n := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}"); n == "" || n == "0" {
					return errors.New("restarts: " + n)
				}
				return nil
			})
		},
	} {
		step(t, c, name, func(t *testing.T) {
			install(t, c)
			leave(t)
			away(t, c)
			uninstall(t, c)
			assertClean(t, c)
		})
	}
}

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
		eventually(t, 60*time.Second, "the agent has uninstalled its node", func() error {
			if text := fileText(t, confList); text != primary {
				return errors.New(text)
			}
			return nil
		})
	})
}
