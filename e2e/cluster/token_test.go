package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ownToken is that of the agent that runs, with which nothing of the plugin must end.
func ownToken(t *testing.T, c *cluster) string {
	t.Helper()
	token, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/var/run/secrets/kubernetes.io/serviceaccount/token", agentPid(t)))
	require.NoError(t, err)
	out, err := c.Try("kubectl", "--kubeconfig", c.kubeconfig(t, "agents-own", "token: "+string(token)), "auth", "whoami")
	require.NoError(t, err, out)
	assert.Contains(t, out, "system:serviceaccount:"+system+":meshcni-node")
	return string(token)
}

// worthless waits until the API server does not know a token any more.
func worthless(t *testing.T, c *cluster, token string) {
	t.Helper()
	config := c.kubeconfig(t, "agents-own", "token: "+token)
	eventually(t, soon, "the token is worthless", func() error {
		out, err := c.Try("kubectl", "--kubeconfig", config, "auth", "whoami")
		if err == nil || !strings.Contains(out, "nauthorized") {
			return errors.New(out)
		}
		return nil
	})
}

// TestAgentAway: the agent's pod is deleted and there is no other. When all that ended with the pod has ended, pods of the mesh still
// start, and are captured.
func TestAgentAway(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "away")
	since := install(t, c, "--set", "addDeadline=3s")
	own := ownToken(t, c)
	agentAway(t, c)
	worthless(t, c, own)

	out := c.Run(t, "kubectl", "--kubeconfig", kubeconfig, "auth", "whoami", "-o", "json")
	assert.Contains(t, out, "system:serviceaccount:"+system+":meshcni-plugin")
	assert.Contains(t, out, nodeName, "bound to the node")
	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client", "cart")
	s.assertCaptured(t, "cart", "client")

	agentBack(t, c)
	assertRights(t, c, since, "get daemonsets.apps", "get nodes", "get namespaces", "get pods", "create events", "patch events")
	s.leave(t)
}
