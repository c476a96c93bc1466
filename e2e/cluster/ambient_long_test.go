//go:build long

package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// agentBreaks kills the node's agent, and lets none start there until mend.
func agentBreaks(t *testing.T, c *cluster) (mend func(t *testing.T)) {
	t.Helper()
	pods := func() string {
		return c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "name")
	}
	set := func(t *testing.T, strategy, args string) {
		t.Helper()
		c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "updateStrategy.type="+strategy, "--set-json", "extraArgs="+args)
	}
	set(t, "OnDelete", `["--ambient-probe-ipv4=ten"]`)
	before := pods()
	require.NoError(t, syscall.Kill(agentPid(t), syscall.SIGKILL))
	c.Run(t, "kubectl", "--namespace", system, "delete", before, "--grace-period=0", "--force")
	eventually(t, soon, "the new agent has failed", func() error {
		if now := pods(); now == before {
			return errors.New(now + " is still there")
		}
		if n := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}"); n == "" || n == "0" {
			return errors.New("restarts: " + n)
		}
		return nil
	})
	return func(t *testing.T) {
		t.Helper()
		broken := strings.TrimSpace(pods())
		set(t, "RollingUpdate", "[]") // kubectl tells of no other strategy how far it is
		c.Run(t, "kubectl", "--namespace", system, "delete", broken, "--ignore-not-found")
		rolledOut(t, c)
	}
}

// TestAmbientAway: while the node has no agent, captured pods go on and new ones wait. A pod whose sandbox is made anew meanwhile,
// as on a node that boots, is said to be captured only when it is again.
func TestAmbientAway(t *testing.T) {
	c := sharedCluster(t)
	s, other := newShop(t, c, "cafe"), newShop(t, c, "apart")
	s.mesh = ambient
	other.plain(t, "client")
	s.plain(t, "cart", "web")
	install(t, c, "--set", "ambient.enabled=true", "--set", "ambient.verifyInterval=2s")
	startNodeProxy(t, c)
	s.ready(t, "cart", "web")
	other.ready(t, "client")
	client, annotation := other.ip(t, "client"), `jsonpath={.metadata.annotations.ambient\.istio\.io/redirection}`
	s.join(t)
	s.captured(t, other, "cart", "web")

	mend := agentBreaks(t, c)
	step(t, c, "captured pods go on, and new pods wait", func(t *testing.T) {
		assert.Equal(t, "15001 for "+client+":8080", s.dial(t, "cart", client+":8080"))
		s.plain(t, "late")
		assert.Contains(t, s.event(t, "late", "FailedCreatePodSandBox"), "agent")
		assert.Empty(t, s.ip(t, "late"))
		s.undisturbed(t, "web")
	})

	step(t, c, "a sandbox made anew is not captured before its proxy listens, nor said to be", func(t *testing.T) {
		stopNodeProxy(t, c)
		killPod(t, s.kubectl(t, "get", "pod", "cart", "-o", "jsonpath={.metadata.uid}"))
		s.event(t, "cart", "FailedCreatePodSandBox")
		assert.Equal(t, "enabled", s.kubectl(t, "get", "pod", "cart", "-o", annotation), "nobody is there to correct it")
		mend(t)
		eventually(t, soon, "the annotation is honest", func() error {
			for _, name := range []string{"cart", "web"} {
				if says := s.kubectl(t, "get", "pod", name, "-o", annotation); says == "enabled" {
					return fmt.Errorf("of %s: %s", name, says)
				}
			}
			return nil
		})
		startNodeProxy(t, c)
		s.ready(t, "cart", "web", "late")
		s.captured(t, other, "cart", "web", "late")
	})
	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	other.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	uninstall(t, c)
	assertClean(t, c)
}
