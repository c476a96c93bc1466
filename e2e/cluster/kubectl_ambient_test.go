package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestKubectlAmbient: "kubectl meshcni test" tries ambient pods by way of the node's proxy, and if there is none, says so.
func TestKubectlAmbient(t *testing.T) {
	c := sharedCluster(t)
	install(t, c, "--set", "ambient.enabled=true", "--set", "ambient.verifyInterval=2s")
	const unknown = "node-1 ambient pod starts: unknown: the node's proxy is not connected, so no pod of this mesh can be tried: no-proxy: "
	connected := func(t *testing.T, want bool) {
		t.Helper()
		eventually(t, soon, "the agent has seen it", func() error {
			if _, out, errs := c.meshcni(t, "status"); !strings.Contains(out, nodeName) || strings.Contains(out, "no-proxy: ") == want {
				return errors.New(out + errs)
			}
			return nil
		})
	}

	step(t, c, "without a proxy", func(t *testing.T) {
		connected(t, false)
		code, out, errs := c.meshcni(t, "test")
		assert.Equal(t, 3, code, errs)
		assert.Contains(t, out, unknown)
		assert.Regexp(t, `(?m)^node-1 +istio +IPv4 +outbound +ok$`, out, "other meshes do not need it")
		assert.Contains(t, out, "3 ok, 0 failed, 1 unknown\n")
	})
	step(t, c, "with one", func(t *testing.T) {
		startNodeProxy(t, c, "forward") // until the step ends
		connected(t, true)
		code, out, errs := c.meshcni(t, "test")
		assert.Equal(t, 0, code, out+errs)
		assert.Regexp(t, `(?m)^node-1 +ambient +IPv4 +outbound +ok$`, out)
		assert.Contains(t, out, " 0 failed, 0 unknown\n")
	})
	step(t, c, "the proxy has gone", func(t *testing.T) {
		connected(t, false)
		code, out, errs := c.meshcni(t, "test")
		assert.Equal(t, 3, code, errs)
		assert.Contains(t, out, unknown)
	})
	c.nothingOfTests(t)
	uninstall(t, c)
	assertClean(t, c)
}
