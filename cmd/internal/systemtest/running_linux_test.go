package systemtest

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/internal/testing/streamtest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// small is a network namespace with an address and nothing else.
func small(t testing.TB, addrs ...string) *netnsexec.NetNS {
	t.Helper()
	ns := netnstest.New(t)
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	for _, a := range addrs {
		out, err := proctest.Command(path, "ip", "addr", "add", netip.PrefixFrom(netip.MustParseAddr(a), netip.MustParseAddr(a).BitLen()).String(), "dev", "lo").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return ns
}

// leaves waits until a pod is outside, and its rules are what they were.
func (n *node) leaves(p *pod, rules string) {
	n.t.Helper()
	n.becomes(p, status.StateOutside)
	n.until("nothing is left in its namespace", func() bool { return n.rules(p.net) == rules })
}

// TestJoinAndLeave: pods that run, and that no agent has seen before, join and leave with the label of their namespace, over and over,
// and nothing is left.
func TestJoinAndLeave(t *testing.T) {
	for _, backend := range withNFT {
		t.Run(string(backend), func(t *testing.T) {
			n := newNode(t, backend)
			w := newWorld(t)
			p := n.pod("cart", w.Pod, "", worldAddrs...).create()
			p.runs()
			ended := n.pod("ended", small(t, "10.244.1.9"), "", "10.244.1.9").create()
			ended.runs()
			ended.Status.Phase = corev1.PodSucceeded
			n.SetStatus(t, ended.Pod)
			n.start("--ambient-drain-timeout=0")
			proxy := n.proxy(nodeproxytest.Faults{})
			n.becomes(p, status.StateOutside)
			// What pods of other tests have left in the host's set, the agent removes as that of strays, when it comes to it.
			n.until("the set is empty", func() bool {
				set := n.hostSet()
				return !slices.ContainsFunc(worldAddrs, func(a string) bool { return strings.Contains(set, a) })
			})
			before, host := n.rules(w.Pod), n.hostSet()
			for range longtest.Rounds(4, 100) {
				n.labelNamespace("ambient")
				n.becomes(p, status.StateCaptured)
				require.NotEqual(t, before, n.rules(w.Pod))
				n.labelNamespace(nil)
				n.leaves(p, before)
			}
			assert.Equal(t, volatile.ReplaceAllString(host, ""), volatile.ReplaceAllString(n.hostSet(), ""))
			assert.Empty(t, proxy.State().Pods)
			for _, r := range proxy.State().Requests {
				assert.NotContains(t, r, string(ended.UID), "it has ended")
			}

			n.labelNamespace("ambient")
			n.becomes(p, status.StateCaptured)
			p.Pod = n.Pod(t, n.ns, p.Name)
			p.Status.Phase = corev1.PodFailed
			n.SetStatus(t, p.Pod)
			n.becomes(p, status.StateOutside)
			assert.NotContains(t, n.hostSet(), worldAddrs[0])
			assert.Empty(t, proxy.State().Pods)
		})
	}
}

// TestKilled: an agent that is killed at any moment leaves nothing that the next does not make right.
func TestKilled(t *testing.T) {
	for _, backend := range withLegacy {
		t.Run(string(backend), func(t *testing.T) {
			n := newNode(t, backend)
			w := newWorld(t)
			p := n.pod("cart", w.Pod, "", worldAddrs...).create()
			p.runs()
			n.start()
			armed := make(chan string, 1)
			o := n.proxyOptions(nodeproxytest.Faults{})
			o.OnRequest = func(r zds.Request) {
				select {
				case what := <-armed:
					if strings.HasPrefix(fmt.Sprint(r), what) {
						n.agent.Kill()
						return
					}
					armed <- what
				default:
				}
			}
			nodeproxytest.Start(t, o)
			n.becomes(p, status.StateOutside)
			out := n.rules(w.Pod)
			n.labelNamespace("ambient")
			n.becomes(p, status.StateCaptured)
			in := n.rules(w.Pod)
			for i, what := range []string{"Add", "Del", "Add", "Del"} {
				armed <- what
				n.labelNamespace(map[string]any{"Add": "ambient", "Del": nil}[what])
				if i == 0 { // it is in already: kill it while it is asked by a new agent's snapshot
					n.agent.Kill()
					<-armed
				}
				<-n.agent.Done()
				n.start()
				if what == "Add" {
					n.becomes(p, status.StateCaptured)
					require.Equal(t, in, n.rules(w.Pod))
					require.Contains(t, n.hostSet(), worldAddrs[0])
				} else {
					n.leaves(p, out)
					require.NotContains(t, n.hostSet(), worldAddrs[0])
				}
			}
			// Anywhere: the more rounds, the more moments.
			for round := range longtest.Rounds(6, 16) {
				mode, want, state := any("ambient"), in, status.StateCaptured
				if round%2 == 1 {
					mode, want, state = nil, out, status.StateOutside
				}
				n.labelNamespace(mode)
				spin(round * 200_000)
				n.agent.Kill()
				n.start()
				if state == status.StateOutside {
					n.leaves(p, out)
					continue
				}
				n.becomes(p, state)
				require.Equal(t, want, n.rules(w.Pod))
			}
		})
	}
}

var spun int

// spin passes some time without a clock.
func spin(n int) {
	for i := range n {
		spun ^= i
	}
}

// TestReboot: a pod that is said to be captured and is not is said so, and captured again; its namespace is another one.
func TestReboot(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	proxy := n.proxy(nodeproxytest.Faults{})
	p := n.pod("cart", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create().add()
	n.becomes(p, status.StateCaptured)
	n.agent.Kill()
	proxy.Kill()
	n.unmount()
	require.NoError(t, os.RemoveAll(n.in("run")))
	old := p.net
	p.net = small(t, "10.244.1.5")
	p.runs()
	require.NotEqual(t, old.ID(), p.net.ID())
	require.Equal(t, "enabled", n.Pod(t, n.ns, p.Name).Annotations[redirection])
	n.start()
	n.until("honest", func() bool { return n.Pod(t, n.ns, p.Name).Annotations[redirection] != "enabled" })
	proxy = n.proxy(nodeproxytest.Faults{})
	n.becomes(p, status.StateCaptured)
	has := proxy.State().Pods[p.UID]
	assert.Equal(t, p.net.ID(), has.NetNS)
}

// TestSnapshot: a new agent's first words to a proxy that has pods: those whose namespace is known, those that it is to keep though
// it is not, and none that are gone.
func TestSnapshot(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	proxy := n.proxy(nodeproxytest.Faults{})
	known := n.pod("known", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create().add()
	lost := n.pod("lost", small(t, "10.244.1.6"), "ambient", "10.244.1.6").create().add()
	gone := n.pod("gone", small(t, "10.244.1.7"), "ambient", "10.244.1.7").create().add()
	for _, p := range []*pod{known, lost, gone} {
		n.becomes(p, status.StateCaptured)
	}
	n.agent.Kill()
	n.unmount()
	require.NoError(t, os.RemoveAll(n.in("run/netns")))
	known.runs()
	n.Remove(t, n.ns, "gone")
	told := len(proxy.State().Requests)
	n.start()
	n.until("it was told", func() bool { return proxy.State().Snapshots == 2 })
	requests := proxy.State().Requests[told:]
	assert.Contains(t, requests, "Add "+string(known.UID))
	assert.Contains(t, requests, "Keep "+string(lost.UID))
	assert.NotContains(t, requests, "Add "+string(gone.UID))
	assert.NotContains(t, requests, "Keep "+string(gone.UID))
	n.until("what is gone is drained", func() bool { _, has := proxy.State().Pods[gone.UID]; return !has })
	_, has := proxy.State().Pods[lost.UID]
	assert.True(t, has)
	lost.runs()
	n.becomes(lost, status.StateCaptured)
	assert.Contains(t, proxy.State().Requests, "Add "+string(lost.UID))
}

// TestSwap: proxies and agents take each other's place while connections are made; none is refused.
func TestSwap(t *testing.T) {
	for _, backend := range withNFT {
		t.Run(string(backend), func(t *testing.T) {
			n := newNode(t, backend)
			agent := n.start()
			proxy := n.proxy(nodeproxytest.Faults{})
			w := newWorld(t)
			p := n.pod("cart", w.Pod, "ambient", worldAddrs...).create().add()
			n.becomes(p, status.StateCaptured)
			probe, err := netnstest.ParseProbe("pod tcp 1000/1000 -> 10.96.5.5:80")
			require.NoError(t, err)
			stop := streamtest.Start(t, w, probe)
			swapProxy := func() {
				next := n.proxy(nodeproxytest.Faults{})
				n.until("the next has the pod", func() bool {
					has, ok := next.State().Pods[p.UID]
					return ok && has.Pending == "" && next.State().Ready
				})
				proxy.Terminate()
				require.Zero(t, proxy.ExitCode())
				proxy = next
			}
			swapProxy()
			next := n.start() // as in a rolling update with a surge
			require.NoError(t, agent.Stop(patience))
			n.becomes(p, status.StateCaptured)
			swapProxy()
			next.Kill()
			n.start()
			n.becomes(p, status.StateCaptured)
			fates := stop()
			assert.Positive(t, fates["out:80 orig=10.96.5.5:80"])
			assert.Len(t, fates, 1, "%v", fates)
		})
	}
}

// TestWhoIsIn: the labels, the excluded namespace and the other mesh decide as for the plugin.
func TestWhoIsIn(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	proxy := n.proxy(nodeproxytest.Faults{})
	n.labelNamespace("ambient")
	out := n.pod("out", small(t, "10.244.1.5"), "none", "10.244.1.5").create().add()
	in := n.pod("in", small(t, "10.244.1.6"), "", "10.244.1.6").create().add()
	side := n.pod("side", small(t, "10.244.1.7"), "", "10.244.1.7")
	side.Annotations["sidecar.istio.io/status"] = `{"containers":["istio-proxy"]}`
	side.Spec.Containers = append(side.Spec.Containers, corev1.Container{Name: "istio-proxy", Image: "proxy"})
	side.create().add().runs()
	n.becomes(out, status.StateOutside)
	n.becomes(in, status.StateCaptured)
	assert.Contains(t, n.rules(side.net), "15006")
	assert.Contains(t, n.rules(in.net), "15008")
	assert.NotContains(t, n.rules(out.net), "15001")
	require.Len(t, proxy.State().Pods, 1)
	n.until("each is known", func() bool { return len(n.states()) == 3 && n.states()["side"].Dialect == "istio" })
	assert.Equal(t, status.StateCaptured, n.states()["side"].State)

	// An excluded namespace.
	n.agent.Kill()
	n.flags = append(n.flags, "--exclude-namespaces=kube-system,"+n.ns)
	n.start()
	n.becomes(in, status.StateOutside)
	assert.NotContains(t, n.rules(in.net), "15001")
	assert.Contains(t, n.rules(side.net), "15006", "it is not ours to touch")
}
