package systemtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestSwitchedOff: an agent without --ambient releases the pods of the one before it, by that one while it runs, and is not ready before,
// so that nobody ends it. What cannot be released is said.
func TestSwitchedOff(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	var proxy *nodeproxytest.Proxy
	p := n.pod("cart", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create()
	before := n.rules(p.net)
	p.runs()
	captured := func() *proctest.Process {
		t.Helper()
		agent := n.start()
		if proxy == nil {
			proxy = n.startProxy()
		}
		n.becomes(p, status.StateCaptured)
		require.NotEqual(t, before, n.rules(p.net))
		return agent
	}
	released := func() {
		t.Helper()
		assert.Equal(t, before, n.rules(p.net))
		assert.Empty(t, n.Pod(t, n.ns, p.Name).Annotations[redirection])
		_, has := proxy.State().Pods[p.UID]
		assert.False(t, has)
		assert.NotContains(t, n.hostSet(), "10.244.1.5")
	}
	nothingKept := func() {
		t.Helper()
		n.until("nothing is kept", func() bool {
			for _, left := range []string{"run/netns", "run/ambient.lock"} {
				if _, err := os.Lstat(n.in(left)); err == nil {
					return false
				}
			}
			return true
		})
		n.until("the agent is ready", func() bool { return strings.HasPrefix(n.get("/readyz"), "ok\n") })
	}
	stop := func(agent *proctest.Process) {
		t.Helper()
		require.NoError(t, agent.Stop(patience))
	}

	t.Run("beside the one before it", func(t *testing.T) {
		old := captured()
		n.start("--ambient=false") // which waits until it is ready
		released()
		nothingKept() // the one before it, which has the rights, has removed it
		assert.Empty(t, n.hostSet())
		stop(old)
		nothingKept()
		released()
		stop(n.agent)
	})
	t.Run("the one before it was killed", func(t *testing.T) {
		captured().Kill()
		n.start("--ambient=false")
		released()
		nothingKept()
		stop(n.agent)
	})
	t.Run("what it cannot release it says", func(t *testing.T) {
		captured().Kill()
		rules := n.rules(p.net)
		unable := n.launch("--ambient=false", "--zds-socket=/proc/none/z.sock")
		n.until("it says so", func() bool {
			text := n.get("/readyz")
			return strings.Contains(text, "ambient-pods-held: this agent runs without --ambient, and pods of this node are still in the care of its proxy (1 in") && strings.Contains(text, "/proc/none")
		})
		assert.Equal(t, rules, n.rules(p.net))
		unable.Kill()
		n.start("--ambient=false")
		released()
		nothingKept()
	})
}
