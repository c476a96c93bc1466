package cluster_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAmbientUninstall: the release goes while pods are in the mesh, with an agent on the node and without one. No pod is left in the
// proxy's care, nobody asks for what it has no right to any more, and the node is as it was.
func TestAmbientUninstall(t *testing.T) {
	c := sharedCluster(t)
	asFound := nodeState(t)
	s, other := newShop(t, c, "cafe"), newShop(t, c, "apart")
	s.mesh = ambient
	other.plain(t, "client")
	s.plain(t, "cart", "web")
	s.ready(t, "cart", "web")
	other.ready(t, "client")
	before := s.firewall(t, "web")
	type way struct {
		name  string
		leave func(t *testing.T)
	}
	ways := []way{
		{"after an upgrade that switches it off", func(t *testing.T) {
			c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "ambient.enabled=false")
			rolledOut(t, c)
			hooks := c.Run(t, "helm", "get", "hooks", release, "--namespace", system)
			assert.Contains(t, hooks, "NODE_NAME", "what a node may still hold, the uninstall can release")
			assert.Contains(t, hooks, "SYS_ADMIN")
			s.outside(t, other, "cart", "web")
			assert.Empty(t, s.kubectl(t, "get", "pods", "-o", `jsonpath={.items[*].metadata.annotations.ambient\.istio\.io/redirection}`))
			assert.Equal(t, before, s.firewall(t, "web"), "its network is as it was")
			assert.NotContains(t, nodeState(t), "meshcni-probes", "nor is anything of the host's")
		}},
		{"with its agent", func(*testing.T) {}},
		{"without an agent", func(t *testing.T) {
			c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "nodeSelector.nowhere=yes")
			away(t, c)
		}},
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("MESHCNI_TEST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "MESHCNI_TEST_SEED")
	}
	t.Logf("MESHCNI_TEST_SEED=%d repeats the order", seed)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] }) //nolint:gosec // a test's
	for _, way := range ways {
		step(t, c, way.name, func(t *testing.T) {
			install(t, c, "--set", "ambient.enabled=true", "--set", "ambient.verifyInterval=2s")
			startNodeProxy(t, c) // it is ready once an agent is
			s.join(t)
			s.captured(t, other, "cart", "web")
			way.leave(t)
			since := len(c.Server.Audit(t))
			uninstall(t, c)
			s.outside(t, other, "cart", "web")
			assert.Equal(t, before, s.firewall(t, "web"), "its network is as it was")
			assert.Empty(t, s.kubectl(t, "get", "pods", "-o", `jsonpath={.items[*].metadata.annotations.ambient\.istio\.io/redirection}`))
			s.undisturbed(t, "cart", "web")
			asked := 0
			for _, call := range c.Server.Audit(t)[since:] {
				if strings.HasPrefix(call.User.Username, "system:serviceaccount:"+system+":") {
					asked++
					// The roles are deleted right after the DaemonSet, maybe before the agent is told of that. It looks then why it ends, and
					// whether what confines its evictions still does: the answer to a trial is a refusal.
					trial := call.DryRun() || strings.Contains(call.String(), " validatingadmissionpolic")
					if trial || call.String() == "get daemonsets.apps FORBIDDEN" {
						continue
					}
					assert.NotContains(t, call.String(), "FORBIDDEN", "%s", call.User.Username)
				}
			}
			assert.NotZero(t, asked)
			s.quit(t)
			stopNodeProxy(t, c)
		})
	}
	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	other.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	assert.Equal(t, asFound, nodeState(t), "the node is as it was")
	// The pods that were there kept the binary and their records. Installed again, it is uninstalled wholly.
	install(t, c)
	uninstall(t, c)
	assertClean(t, c)
}
