package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDefaultsAfterALoss: with the chart's defaults, on an API server with the policies, what started without the plugin while the network's
// file lacked it is evicted, and its successor is captured. A pod that nothing makes anew stays, and so does one of before the installation.
func TestDefaultsAfterALoss(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "loss")
	s.create(t, pod{name: "client", outside: true}, pod{name: "before"})
	s.deploy(t, pod{name: "older"})
	s.ready(t, "client", "before")
	older := s.replica(t, "older")
	install(t, c)
	s.deploy(t, pod{name: "cart"})
	s.assertCaptured(t, s.replica(t, "cart"), "client")

	agentAway(t, c)
	writeList(t, primary)
	lost := s.replica(t, "cart")
	s.kubectl(t, "delete", "pod", lost, "--timeout=5m")
	lost = s.replica(t, "cart")
	s.create(t, pod{name: "alone"})
	s.ready(t, "alone")
	s.assertUncaptured(t, lost, "client")
	agentBack(t, c)
	s.kubectl(t, "wait", "--for=delete", "pod/"+lost, "--timeout=5m")
	assert.Contains(t, s.event(t, lost, "MeshRepairEvicted"), "its network was set up without the plugin")
	s.assertCaptured(t, s.replica(t, "cart"), "client")
	s.event(t, "alone", "MeshNotCaptured")
	s.assertUncaptured(t, "alone", "client")
	assert.Equal(t, older, s.replica(t, "older"), "it ran before the plugin was installed")
	s.assertUncaptured(t, "before", "client")
	assert.NotContains(t, agentLog(t, c), "not-evicting")
	s.leave(t)
}

// replica waits until a Deployment's only pod is ready, and returns its name.
func (s shop) replica(t *testing.T, deployment string) (name string) {
	t.Helper()
	eventually(t, soon, "one pod of "+deployment+" is ready", func() error {
		said, err := s.Try("kubectl", "--namespace", s.namespace, "get", "pods", "-l", "app="+deployment, "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		fields := strings.Fields(said)
		if err != nil || len(fields) != 2 || fields[1] != "True" {
			return errors.Join(err, errors.New(said))
		}
		name = fields[0]
		return nil
	})
	require.NotEmpty(t, name)
	return name
}

// agentAway takes the agent from the node, as one whose image cannot be pulled is away: the plugin stays, since the DaemonSet wants the node.
func agentAway(t *testing.T, c *cluster) {
	t.Helper()
	withoutAgent(t, c, func() {
		c.Run(t, "kubectl", "--namespace", system, "set", "image", "daemonset/meshcni-node", "*="+noImage)
	})
}

// noImage is of a registry that nobody runs.
const noImage = "localhost:1/none:none"

// withoutAgent ends the agents' pods after a change by which no other can start.
func withoutAgent(t *testing.T, c *cluster, change func()) {
	t.Helper()
	pods := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "name")
	change()
	c.Run(t, "kubectl", append([]string{"--namespace", system, "delete", "--timeout=5m"}, strings.Fields(pods)...)...)
}

// agentBack lets the agent start, and waits until it says that the node is in order.
func agentBack(t *testing.T, c *cluster) {
	t.Helper()
	c.Run(t, "kubectl", "--namespace", system, "rollout", "undo", "daemonset/meshcni-node")
	rolledOut(t, c)
}
