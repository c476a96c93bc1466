package cluster_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// upgradeToNothing replaces the agent by one that cannot start.
func upgradeToNothing(t *testing.T, c *cluster, values string) {
	t.Helper()
	c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--set", located[1]+",image.tag=missing,image.pullPolicy=Never,addDeadline=3s"+values)
	eventually(t, 60*time.Second, "the new agent cannot start", func() error {
		if why := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].state.waiting.reason}"); why != "ErrImageNeverPull" {
			return errors.New("waiting: " + why)
		}
		return nil
	})
}

// TestBrokenUpgrade: the old agent stays until the new one is ready, and with it the token that the plugin has. So nobody
// notices that the new one cannot start.
func TestBrokenUpgrade(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "beside")
	install(t, c, "--set", "addDeadline=3s")
	upgradeToNothing(t, c, "")
	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client", "cart")
	s.assertCaptured(t, "cart", "client")
	c.Run(t, "helm", "rollback", release, "--namespace", system)
	rolledOut(t, c)
	s.leave(t)
}

// TestBrokenUpgradeInItsPlace: where the new agent takes the old one's place, as on the host's network, the old one's token
// is gone with it. Pods outside the mesh don't notice; those of the mesh wait, and say what for, until somebody rolls back.
func TestBrokenUpgradeInItsPlace(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "broken")
	install(t, c, "--set", "addDeadline=3s")
	upgradeToNothing(t, c, ",updateStrategy.rollingUpdate.maxUnavailable=1")
	eventually(t, 60*time.Second, "the old agent's token is worth nothing", func() error {
		if out, err := c.Try("kubectl", "--kubeconfig", kubeconfig, "auth", "whoami"); err == nil {
			return errors.New(out)
		}
		return nil
	})

	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client")
	message := s.event(t, "cart", "FailedCreatePodSandBox")
	assert.Contains(t, message, "nauthorized")

	c.Run(t, "helm", "rollback", release, "--namespace", system)
	rolledOut(t, c)
	s.ready(t, "cart")
	s.assertCaptured(t, "cart", "client")
	s.leave(t)
}
