//go:build long

package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// upgradeToNothing replaces the agent by one that cannot start.
func upgradeToNothing(t *testing.T, c *cluster, values string) {
	t.Helper()
	c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--set", located[1]+",image.tag=missing,image.pullPolicy=Never,addDeadline=3s"+values)
	eventually(t, soon, "the new agent cannot start", func() error {
		if why := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].state.waiting.reason}"); why != "ErrImageNeverPull" {
			return errors.New("waiting: " + why)
		}
		return nil
	})
}

// TestBrokenUpgrade: the old agent stays until the new one is ready. So no pod notices that the new one cannot start, here on the
// pods' network.
func TestBrokenUpgrade(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "beside")
	install(t, c, "--set", "addDeadline=3s,hostNetwork=false")
	upgradeToNothing(t, c, ",hostNetwork=false")
	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client", "cart")
	s.assertCaptured(t, "cart", "client")
	c.Run(t, "helm", "rollback", release, "--namespace", system)
	rolledOut(t, c)
	s.leave(t)
}

// TestWaitForTheUpgrade: helm, told to wait, fails while a node's new agent crashes; the old one goes on, on the host's network
// too.
func TestWaitForTheUpgrade(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "waited")
	install(t, c)
	agent := agentPod(t, c)
	out, err := c.Try("helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "extraArgs={--no-such-flag}", "--wait", "--timeout", "20s")
	assert.Error(t, err, out)
	eventually(t, soon, "the new agent has crashed", func() error {
		codes := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].lastState.terminated.exitCode}")
		if !strings.Contains(codes, "2") {
			return errors.New("exit codes: " + codes)
		}
		return nil
	})
	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client", "cart")
	s.assertCaptured(t, "cart", "client")
	c.Run(t, "kubectl", "--namespace", system, "wait", "pod", agent, "--for=condition=Ready", "--timeout=5m")

	c.Run(t, "helm", "rollback", release, "--namespace", system, "--wait", "--timeout", "5m")
	rolledOut(t, c)
	assert.Equal(t, agent, agentPod(t, c), "it was never replaced")
	s.leave(t)
}

// TestBrokenUpgradeInItsPlace: where the new agent takes the old one's place, as with maxUnavailable, there is none. The plugin
// works on, because its token does not end with the old one's pod.
func TestBrokenUpgradeInItsPlace(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "broken")
	install(t, c, "--set", "addDeadline=3s")
	own := ownToken(t, c)
	upgradeToNothing(t, c, ",updateStrategy.rollingUpdate.maxUnavailable=1")
	worthless(t, c, own)

	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client", "cart")
	s.assertCaptured(t, "cart", "client")

	c.Run(t, "helm", "rollback", release, "--namespace", system)
	rolledOut(t, c)
	s.leave(t)
}
