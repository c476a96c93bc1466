//go:build long

package cluster_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDeadlock: whatever has become of the node while no agent was there, an agent that starts puts it in order, and needs
// nobody's help.
func TestDeadlock(t *testing.T) {
	c := sharedCluster(t)
	meshed, excluded := newShop(t, c, "deadlock"), shop{c, "kube-system", istio}
	install(t, c, "--set", "addDeadline=3s")
	list := fileText(t, confList)
	meshed.create(t, pod{name: "client", outside: true})
	meshed.ready(t, "client")
	for i, d := range []struct {
		name  string
		wreck func(t *testing.T)
		// wrecked waits until it shows, by a pod of kube-system and one of the mesh.
		wrecked func(t *testing.T, dns, cart string)
	}{
		{"the binary is gone", removed(binary), func(t *testing.T, dns, cart string) {
			assert.Contains(t, excluded.event(t, dns, "FailedCreatePodSandBox"), `failed to find plugin "meshcni"`)
			assert.Contains(t, meshed.event(t, cart, "FailedCreatePodSandBox"), `failed to find plugin "meshcni"`)
		}},
		{"the kubeconfig is gone", removed(kubeconfig), func(t *testing.T, dns, cart string) {
			excluded.ready(t, dns)
			assert.Contains(t, meshed.event(t, cart, "FailedCreatePodSandBox"), kubeconfig)
		}},
		{"the list is cut off", cutOff(30), func(t *testing.T, _, _ string) { networkNotReady(t, c) }},
		{"the list is empty, and the rest gone", func(t *testing.T) {
			cutOff(len(list))(t)
			removed(binary, kubeconfig)(t)
		}, func(t *testing.T, _, _ string) { networkNotReady(t, c) }},
	} {
		step(t, c, d.name, func(t *testing.T) {
			dns, cart := fmt.Sprint("dns-", i), fmt.Sprint("cart-", i)
			agentAway(t, c)
			d.wreck(t)
			t.Cleanup(func() { excluded.kubectl(t, "delete", "pod", dns, "--timeout=5m") })
			excluded.create(t, pod{name: dns, outside: true})
			meshed.create(t, pod{name: cart, validated: true})
			d.wrecked(t, dns, cart)

			agentBack(t, c)
			assert.Equal(t, list, fileText(t, confList), "the network's list, with our entry")
			excluded.ready(t, dns)
			meshed.ready(t, cart)
			meshed.assertCaptured(t, cart, "client")
		})
	}
	meshed.leave(t)
	meshed.assertNothingLeft(t)
}

// removed takes files from the node.
func removed(paths ...string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		for _, path := range paths {
			require.NoError(t, os.Remove(path))
		}
	}
}

// cutOff leaves the network's list without its last bytes, as a full disk does.
func cutOff(bytes int) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		require.NoError(t, os.Truncate(confList, int64(len(fileText(t, confList))-bytes)))
	}
}

// networkNotReady waits until the kubelet says so of its node, which then starts pods on the host's network only.
func networkNotReady(t *testing.T, c *cluster) {
	t.Helper()
	eventually(t, soon, "the node's network is not ready", func() error {
		if why := c.Run(t, "kubectl", "get", "node", nodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`); !strings.Contains(why, "NetworkReady=false") {
			return errors.New(why)
		}
		return nil
	})
}

// TestDeadlockOnThePodsNetwork: an agent that starts through the plugin cannot when the plugin's file is gone, and the one
// before it cannot end. The host's network gets both out of it, as docs/troubleshooting.md says.
func TestDeadlockOnThePodsNetwork(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "stuck")
	install(t, c, "--set", "hostNetwork=false")
	old := agentPod(t, c)
	require.NoError(t, syscall.Kill(agentPid(t), syscall.SIGSTOP), "else it would put the file back")
	removed(binary)(t)
	c.Run(t, "kubectl", "--namespace", system, "delete", "pod", old, "--grace-period=1", "--wait=false")
	agents := shop{c, system, istio}
	assert.Contains(t, agents.event(t, old, "FailedKillPod"), "failed to find plugin")
	var next string
	eventually(t, soon, "the next agent's pod is there", func() error {
		next = strings.TrimSpace(strings.ReplaceAll(agentPod(t, c), old, ""))
		if next == "" {
			return errors.New("only the old one")
		}
		return nil
	})
	agents.event(t, next, "FailedCreatePodSandBox")
	assert.Contains(t, c.Run(t, "kubectl", "get", "events", "--all-namespaces", "--field-selector", "reason=FailedCreatePodSandBox"),
		`failed to find plugin "meshcni"`)

	c.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "hostNetwork=true", "--wait", "--timeout", "5m")
	rolledOut(t, c)
	assert.NotContains(t, []string{old, next}, agentPod(t, c))
	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client", "cart")
	s.assertCaptured(t, "cart", "client")
	s.leave(t)
	s.assertNothingLeft(t)
}

// agentPod is the names of the agent's pods, those that are ending too.
func agentPod(t *testing.T, c *cluster) string {
	t.Helper()
	return c.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/name=meshcni", "-o", "jsonpath={.items[*].metadata.name}")
}

// TestPorts: the agent's are not open to the network, and those of another program keep no agent from its work.
func TestPorts(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "ports")
	taken, err := net.Listen("tcp", "127.0.0.1:15014")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	install(t, c)
	s.create(t, pod{name: "client", outside: true}, pod{name: "cart", validated: true})
	s.ready(t, "client", "cart")
	s.assertCaptured(t, "cart", "client")

	require.NoError(t, taken.Close())
	for url, open := range map[string]bool{
		"http://127.0.0.1:8000/readyz": true, "http://127.0.0.1:15014/metrics": true,
		"http://" + nodeIP + ":8000/readyz": false, "http://" + nodeIP + ":15014/metrics": false,
	} {
		get := func() error {
			resp, err := http.Get(url) //nolint:noctx // a test's own
			if err == nil {
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					err = errors.New(resp.Status)
				}
			}
			return err
		}
		if open {
			eventually(t, soon, url, get)
		} else {
			assert.ErrorIs(t, get(), syscall.ECONNREFUSED, url)
		}
	}
	assert.Contains(t, s.dial(t, "client", nodeIP+":15014"), "refused", "from a pod")
	s.leave(t)
}
