package cluster_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// broken are values with which no agent starts, and which the chart leaves to it to judge.
const broken = "extraArgs={--ambient-probe-ipv4=ten},updateStrategy.type=OnDelete"

// away waits until the node has no agent that runs.
func away(t *testing.T, c *cluster) {
	t.Helper()
	eventually(t, soon, "no agent runs", func() error {
		running := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node",
			"-o", "jsonpath={.items[*].status.containerStatuses[*].state.running}{.items[?(@.metadata.deletionTimestamp)].metadata.name}")
		if running != "" {
			return errors.New(running)
		}
		return nil
	})
}

// TestUninstallWithoutAgent: a node that has no agent when the release is uninstalled is left as it was found, all the same. An agent
// that is sent to other nodes takes its plugin along.
func TestUninstallWithoutAgent(t *testing.T) {
	c := sharedCluster(t)
	for name, leave := range map[string]func(t *testing.T){
		"sent to other nodes": func(t *testing.T) {
			c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "nodeSelector.nowhere=yes")
			away(t, c)
			require.NotContains(t, fileText(t, confList), `"meshcni"`, "the node has nobody to look after it")
		},
		"cannot start any more": func(t *testing.T) {
			c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", broken)
			c.Run(t, "kubectl", "--namespace", system, "delete", "pod", "-l", "app.kubernetes.io/component=node")
			eventually(t, soon, "the new agent has failed", func() error {
				if n := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}"); n == "" || n == "0" {
					return errors.New("restarts: " + n)
				}
				return nil
			})
			away(t, c)
			require.Contains(t, fileText(t, confList), `"meshcni"`, "the plugin is left")
		},
	} {
		step(t, c, name, func(t *testing.T) {
			install(t, c)
			leave(t)
			uninstall(t, c)
			assertClean(t, c)
		})
	}
}
