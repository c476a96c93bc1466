package systemtest

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestRelease: all pods can be given back, with an agent and without one; and uninstalling does so first, and leaves nothing.
func TestRelease(t *testing.T) {
	for _, backend := range withLegacy {
		t.Run(string(backend), func(t *testing.T) {
			n := newNode(t, backend)
			n.start()
			proxy := n.proxy(nodeproxytest.Faults{})
			ns := small(t, "10.244.1.5")
			before := n.rules(ns)
			p := n.pod("cart", ns, "ambient", "10.244.1.5").create().add()
			p.runs()
			n.becomes(p, status.StateCaptured)
			var rows struct{ Pods []status.Pod }
			n.until("the agent has written it", func() bool {
				_, text := n.run("pods", "-o", "json")
				return json.Unmarshal([]byte(text), &rows) == nil && len(rows.Pods) == 1 && rows.Pods[0].State == status.StateCaptured
			})
			assert.Equal(t, "ambient", rows.Pods[0].Dialect)
			assert.Equal(t, string(backend), rows.Pods[0].Backend)

			code, text := n.run("release", "-o", "json")
			assert.Zero(t, code)
			assert.JSONEq(t, "[]", text)
			assert.Equal(t, before, n.rules(ns))
			assert.Empty(t, proxy.State().Pods)
			n.becomes(p, status.StateOutside)
			out := p.attachment().Run(t, "ADD")
			assert.NotZero(t, out.Exit, "no pod starts in a mesh that is leaving")

			n.agent.Kill()
			n.start()
			n.becomes(p, status.StateCaptured)
			n.agent.Kill() // and nobody is there to do it
			code, _ = n.run("uninstall")
			assert.Zero(t, code)
			assert.Equal(t, before, n.rules(ns))
			assert.Empty(t, n.Pod(t, n.ns, p.Name).Annotations[redirection])
			assert.NotContains(t, n.hostSet(), "10.244.1.5")
			for _, left := range []string{"run/netns", "run/agent.sock", "run/ambient.lock", "bin/meshcni", "run/kubeconfig", "z.sock"} {
				_, err := os.Lstat(n.in(left))
				assert.ErrorIs(t, err, os.ErrNotExist, left)
			}
		})
	}
}

// TestGivenAway: all pods can be given to Istio's own agent and had back, and an uninstall takes nothing from it. If the agent dies
// while it gives them, the uninstall gives the rest.
func TestGivenAway(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	proxy := n.proxy(nodeproxytest.Faults{})
	ns := small(t, "10.244.1.5")
	p := n.pod("cart", ns, "ambient", "10.244.1.5").create().add()
	p.runs()
	n.becomes(p, status.StateCaptured)
	ours := n.rules(ns)

	code, _ := n.run("release", "--to=istio-cni")
	assert.Zero(t, code)
	theirs := n.rules(ns)
	assert.Contains(t, theirs, "istio-ambient-nat")
	assert.NotContains(t, theirs, "table inet istio {")
	assert.Equal(t, status.StateOutside, n.states()[p.Name].State)
	stays := func() {
		t.Helper()
		assert.Equal(t, theirs, n.rules(ns))
		assert.Equal(t, "enabled", n.Pod(t, n.ns, p.Name).Annotations[redirection])
		assert.Len(t, proxy.State().Pods, 1)
	}
	stays()
	code, _ = n.run("release", "--undo")
	assert.Zero(t, code)
	n.becomes(p, status.StateCaptured)
	assert.Equal(t, ours, n.rules(ns))

	n.agent.Kill()
	require.NoError(t, os.WriteFile(n.in("run/ambient.given"), []byte(`{"to":"istio-cni","all":false}`), 0o600))
	code, _ = n.run("uninstall")
	assert.Zero(t, code)
	stays()
	_, err := os.Lstat(n.in("run/ambient.given"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestNoAgentForAmbient: a mesh with a proxy on the node is not captured halfway by an agent that does not serve it.
func TestNoAgentForAmbient(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables, "--dialect=ambient")
	code, _ := n.run("install", "--once")
	assert.Equal(t, 2, code, "such pods need an agent that serves them")
	n.start()
	p := n.pod("cart", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create()
	before := n.rules(p.net)
	n.agent.Kill()
	out := p.within("1s").Run(t, "ADD")
	code, text := out.Failure()
	assert.EqualValues(t, 11, code)
	assert.Contains(t, text, "agent")
	assert.Equal(t, before, n.rules(p.net))
}

// TestMany: many pods, with the tag long a node's fill, start at once while all of their namespace changes, and leave; nothing is kept of them.
func TestMany(t *testing.T) {
	pods := longtest.Rounds(40, 110)
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	proxy := n.proxy(nodeproxytest.Faults{})
	all := make([]*pod, pods)
	for i := range all {
		a := fmt.Sprintf("10.244.2.%d", i+1)
		all[i] = n.pod(fmt.Sprint("cart-", i), small(t, a), "ambient", a)
	}
	fds := func() int {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.agent.Pid()))
		require.NoError(t, err)
		return len(files)
	}
	memory := func() []string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.agent.Pid()))
		require.NoError(t, err)
		return regexp.MustCompile(`(?m)^(VmHWM|VmRSS|RssAnon|RssFile):.*$`).FindAllString(string(text), -1)
	}
	round := func() {
		var adding, storm sync.WaitGroup
		for _, p := range all {
			p.ResourceVersion, p.UID = "", ""
			p.create()
		}
		stop := make(chan struct{})
		storm.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					n.label("/api/v1/namespaces/"+n.ns, map[string]any{"storm": fmt.Sprint(i)})
				}
			}
		})
		for _, p := range all {
			a := p.attachment()
			adding.Go(func() {
				out := a.Run(t, "ADD")
				assert.Zero(t, out.Exit, "%s", out.Stdout)
			})
		}
		adding.Wait()
		close(stop)
		storm.Wait()
		n.until("all are captured", func() bool {
			states := n.states()
			for _, p := range all {
				if states[p.Name].State != status.StateCaptured {
					return false
				}
			}
			return true
		})
		require.Len(t, proxy.State().Pods, pods)
		t.Logf("with %d pods: %d files, memory %v", pods, fds(), memory())
		for _, p := range all {
			n.Remove(t, n.ns, p.Name)
			assert.Zero(t, p.attachment().Run(t, "DEL").Exit)
		}
		n.until("all are gone", func() bool { return len(n.states()) == 0 && len(proxy.State().Pods) == 0 })
	}
	round()
	before := fds()
	round()
	n.until("no file is left open", func() bool { return fds() <= before })
	assert.NotContains(t, n.hostSet(), "10.244.2.")
}
