package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	agentTaint = "meshcni.io/agent-not-ready"
	peersTaint = "cni.istio.io/not-ready"
)

// taints are the node's, as key=value.
func (c *cluster) taints(t *testing.T) string {
	t.Helper()
	return c.Run(t, "kubectl", "get", "node", nodeName, "-o", "jsonpath={range .spec.taints[*]}{.key}={.value} {end}")
}

// waits sees that the scheduler keeps pods off the node because of the taint.
func (s shop) waits(t *testing.T, name string) {
	t.Helper()
	assert.Contains(t, s.event(t, name, "FailedScheduling"), "untolerated taint")
	assert.Empty(t, s.kubectl(t, "get", "pod", name, "-o", "jsonpath={.spec.nodeName}"))
}

// breakAgent leaves the node without an agent that is ready, whatever anybody tries.
func breakAgent(t *testing.T, c *cluster) {
	t.Helper()
	c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", broken)
	c.Run(t, "kubectl", "--namespace", system, "delete", "pod", "-l", "app.kubernetes.io/component=node")
	eventually(t, soon, "the taint is back", func() error {
		if now := c.taints(t); !strings.Contains(now+" ", agentTaint+"=put-back ") {
			return errors.New(now)
		}
		return nil
	})
}

// untainted waits until nothing is left of the taints.
func untainted(t *testing.T, c *cluster) {
	t.Helper()
	eventually(t, soon, "the taints are gone", func() error {
		if now := c.taints(t); strings.Contains(now, agentTaint) || strings.Contains(now, peersTaint) {
			return errors.New(now)
		}
		return nil
	})
}

// registerTainted makes the node a new one, which its kubelet registers with taints.
func (c *cluster) registerTainted(t *testing.T, keys ...string) {
	t.Helper()
	t.Cleanup(func() {
		for _, key := range keys {
			_, _ = c.Try("kubectl", "taint", "node", nodeName, key+"-")
		}
	})
	config := "registerWithTaints:\n"
	for _, key := range keys {
		config += "- {key: " + key + ", effect: NoSchedule}\n"
	}
	c.Processes["kubelet"].Kill()
	c.Run(t, "kubectl", "delete", "node", nodeName)
	require.NoError(t, c.StartKubelet(config))
	for _, key := range keys {
		require.Contains(t, c.taints(t), key, "what the kubelet has registered")
	}
}

// TestTaint: a pod waits for a node that its kubelet has registered with the taint, and starts captured once the node's agent is ready.
// When the agent is gone the taint is back, and the next pod waits. Neither an upgrade that turns the controller off nor the release's
// end leaves a taint behind, also where no agent is.
func TestTaint(t *testing.T) {
	c := sharedCluster(t)
	c.registerTainted(t, agentTaint, peersTaint)
	s := newShop(t, c, "tainted")
	s.create(t, pod{name: "cart", validated: true}, pod{name: "client", outside: true})
	s.waits(t, "cart")

	install(t, c, "--set", "taint.enabled=true,taint.grace=5s,taint.alsoRemove={"+peersTaint+"}")
	s.ready(t, "cart", "client")
	s.assertCaptured(t, "cart", "client")
	assert.NotContains(t, c.taints(t), "not-ready")
	c.Run(t, "kubectl", "--namespace", system, "rollout", "status", "deployment/meshcni-node-taint", "--timeout=5m")

	step(t, c, "the agent is gone, and comes back", func(t *testing.T) {
		breakAgent(t, c)
		eventually(t, soon, "the event", func() error {
			out := c.Run(t, "kubectl", "--namespace", "default", "get", "events", "--field-selector", "reason=AgentTaintAdded,involvedObject.name="+nodeName, "-o", "jsonpath={.items[*].message}")
			if !strings.Contains(out, agentTaint) {
				return fmt.Errorf("events: %q", out)
			}
			return nil
		})
		s.create(t, pod{name: "late", validated: true})
		s.waits(t, "late")
		c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "updateStrategy.type=RollingUpdate", "--set-json", "extraArgs=[]")
		rolledOut(t, c)
		s.ready(t, "late")
		s.assertCaptured(t, "late", "client")
		untainted(t, c)
	})

	step(t, c, "the controller is turned off while the agent is gone", func(t *testing.T) {
		breakAgent(t, c)
		c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "taint.enabled=false")
		assert.NotContains(t, c.taints(t), agentTaint, "when the upgrade is done")
		left := c.Run(t, "kubectl", "get", "deployments,jobs,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,validatingadmissionpolicies", "-A",
			"-l", "app.kubernetes.io/component in (taint, taint-remove)", "-o", "name")
		assert.Empty(t, left, "what the controller and the removal had")
		c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "taint.enabled=true,updateStrategy.type=RollingUpdate", "--set-json", "extraArgs=[]")
		rolledOut(t, c)
	})

	step(t, c, "the release goes while the agent is gone", func(t *testing.T) {
		breakAgent(t, c)
		s.kubectl(t, "delete", "deployments,pods", "--all", "--timeout=5m")
		uninstall(t, c)
		untainted(t, c)
		assertClean(t, c)
	})
}
