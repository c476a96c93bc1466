//go:build long

package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rewrite writes the network's list as its owner did, each second, as a program does that knows of nobody else, until stop.
func rewrite(t *testing.T) (stop func()) {
	t.Helper()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		each := time.NewTicker(time.Second)
		defer each.Stop()
		for {
			if err := errors.Join(os.WriteFile(confList+".tmp", []byte(primary), 0o644), os.Rename(confList+".tmp", confList)); err != nil {
				t.Error(err)
			}
			select {
			case <-end:
				return
			case <-each.C:
			}
		}
	}()
	done := false
	stop = func() {
		if !done {
			close(end)
			<-ended
		}
		done = true
	}
	t.Cleanup(stop)
	return stop
}

func statusOf(t *testing.T, c *cluster) (s status) {
	t.Helper()
	out, err := c.Try("kubectl", "--namespace", system, "exec", "daemonset/meshcni-node", "--", "meshcni-node", "status", "-o", "json")
	require.NoError(t, err, out)
	require.NoError(t, json.Unmarshal([]byte(out), &s), out)
	return s
}

// TestSilentPods: while another program keeps removing the plugin from the network's list, pods of the mesh start without their
// rules. Each is found: by an event, in the agent's metrics and by its status; none of the others is. What the event says to do
// cures it.
func TestSilentPods(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "silent")
	install(t, c, "--set", "cni.ownFile=false")
	const key = "traffic.sidecar.istio.io/excludeInboundPorts"
	wrong := pod{name: "wrong", annotations: map[string]string{key: "http"}}
	s.create(t, pod{name: "client", outside: true}, pod{name: "before"}, wrong)
	s.ready(t, "client", "before")
	s.event(t, "wrong", "FailedCreatePodSandBox")

	stop := rewrite(t)
	eventually(t, soon, "the agent sees that it is fought", func() error {
		if now := statusOf(t, c); !slices.ContainsFunc(now.News, func(n news) bool { return n.Code == "fight" }) {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	names := []string{"wrong"}
	for i := range 6 {
		names = append(names, fmt.Sprintf("cart-%d", i))
		s.create(t, pod{name: names[i+1]})
	}
	s.ready(t, names...)

	var silent []string
	client := s.ip(t, "client")
	for _, name := range names {
		if s.dial(t, name, client+":8080") == "8080 for "+client+":8080" {
			silent = append(silent, name)
		}
	}
	require.Contains(t, silent, "wrong", "had it gone through the plugin, it would not run")
	t.Logf("uncaptured: %v", silent)
	for _, name := range silent {
		message := s.event(t, name, "MeshNotCaptured")
		assert.Contains(t, message, "its network was set up without the plugin, by e2e (portmap, ptp)")
		assert.Contains(t, message, "delete the pod")
		if name == "wrong" {
			assert.Contains(t, message, key, "the next one would be refused")
		}
	}
	now := statusOf(t, c)
	for _, name := range append(names, "before") {
		state, reason := now.capture(s.namespace, name)
		want := "captured recorded"
		if slices.Contains(silent, name) {
			want = "failed not-called"
		}
		assert.Equal(t, want, state+" "+reason, name)
	}
	assert.Contains(t, fmt.Sprint(now.News), fmt.Sprintf("uncaptured %d of the node's pods", len(silent)))
	assert.Contains(t, metrics(t, c), fmt.Sprintf("meshcni_pods{state=\"uncaptured\"} %d\n", len(silent)))
	assert.Contains(t, metrics(t, c), fmt.Sprintf("meshcni_pods_uncaptured_total{reason=\"not-called\"} %d\n", len(silent)))
	events := s.kubectl(t, "get", "events", "--field-selector", "reason=MeshNotCaptured", "-o", "jsonpath={.items[*].involvedObject.name}")
	assert.ElementsMatch(t, silent, strings.Fields(events), "one event each, and none of others")

	stop()
	eventually(t, soon, "the agent is ready again", func() error {
		if now := statusOf(t, c); !now.Ready {
			return fmt.Errorf("%v", now.News)
		}
		return nil
	})
	s.kubectl(t, append([]string{"delete", "pod", "--timeout=5m"}, silent...)...)
	for _, name := range silent {
		p := pod{name: name}
		if name == "wrong" {
			p.annotations = map[string]string{key: "9091"}
		}
		s.create(t, p)
	}
	s.ready(t, silent...)
	for _, name := range silent {
		s.assertCaptured(t, name, "client")
	}
	eventually(t, soon, "nothing is left to do", func() error {
		out, err := c.Try("kubectl", "--namespace", system, "exec", "daemonset/meshcni-node", "--", "meshcni-node", "status")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	s.leave(t)
}

// TestBypassIsToldOnItsPod: the plugin has no right to write events, so the agent tells what the plugin has seen.
func TestBypassIsToldOnItsPod(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "bypass")
	install(t, c, "--set", "refuseProxyUID=false")
	s.create(t, pod{name: "client", outside: true}, pod{name: "as-proxy", appUID: 1337}, pod{name: "plain"})
	s.ready(t, "client", "as-proxy", "plain")
	s.assertUncapturedOut(t, "as-proxy", "client")
	s.assertCaptured(t, "plain", "client")
	events := func(name string) string {
		return s.kubectl(t, "get", "events", "--field-selector", "reason=MeshBypass,type=Warning,involvedObject.name="+name, "-o", "jsonpath={.items[*].message}")
	}
	eventually(t, soon, "the event", func() error {
		if text := events("as-proxy"); !strings.Contains(text, `proxy-id: container "app" bypasses the mesh: it runs as the proxy's user, 1337`) {
			return errors.New(text)
		}
		return nil
	})
	assert.Empty(t, events("plain"))
	for line := range strings.Lines(agentLog(t, c)) {
		if strings.Contains(line, `"msg":"decision"`) && strings.Contains(line, `"pod":"as-proxy"`) {
			assert.Contains(t, line, `"level":"WARN"`)
		}
	}
	s.leave(t)
}

// assertUncapturedOut shows that what the application of a pod sends does not go through its proxy.
func (s shop) assertUncapturedOut(t *testing.T, name, client string) {
	t.Helper()
	other := s.ip(t, client)
	assert.Equal(t, "8080 for "+other+":8080", s.dial(t, name, other+":8080"))
}
