package cluster_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/image"
)

// meshcni runs "kubectl meshcni" as a user does.
func (c *cluster) meshcni(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	err := c.run(&out, &errs, "", "kubectl", append([]string{"meshcni"}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), out.String(), errs.String()
	}
	require.NoError(t, err, errs.String())
	return 0, out.String(), errs.String()
}

// decode is what "kubectl meshcni" prints as JSON.
func decode[T any](t *testing.T, c *cluster, args ...string) (v T) {
	t.Helper()
	_, out, errs := c.meshcni(t, args...)
	require.NoError(t, json.Unmarshal([]byte(out), &v), out+errs)
	return v
}

// nothingOfTests waits until what "kubectl meshcni test" has made is gone.
func (c *cluster) nothingOfTests(t *testing.T) {
	t.Helper()
	eventually(t, soon, "nothing is left", func() error {
		if left := c.Run(t, "kubectl", "get", "namespaces", "-l", "meshcni.io/test", "-o", "name"); left != "" {
			return errors.New(left)
		}
		return nil
	})
}

// TestKubectl: whoever has kubectl and its plugin hears what is so, of the cluster and of a pod, by the API server alone.
func TestKubectl(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "kubectl")
	s.create(t, pod{name: "early"}, pod{name: "client", outside: true})
	s.ready(t, "early", "client")

	step(t, c, "nothing installed", func(t *testing.T) {
		code, out, _ := c.meshcni(t, "status")
		assert.Equal(t, 1, code)
		assert.Contains(t, out, "next: no node has an agent: install the chart")
		code, out, _ = c.meshcni(t, "check")
		assert.Equal(t, 1, code)
		assert.Contains(t, out, "error: no-agents: ")
	})

	install(t, c, "--set", "repair.verifyInterval=1s", "--set", "excludeNamespaces={kube-system,left}")
	s.create(t, pod{name: "cart", annotations: map[string]string{"traffic.sidecar.istio.io/excludeOutboundPorts": "3306"}})
	s.ready(t, "cart")

	step(t, c, "a captured pod", func(t *testing.T) {
		var out string
		eventually(t, soon, "the agent has looked at the pod", func() (err error) {
			var code int
			var errs string
			if code, out, errs = c.meshcni(t, "explain", "-n", s.namespace, "cart"); code != 0 || !strings.Contains(out, "now: captured") {
				err = errors.New(out + errs)
			}
			return err
		})
		assert.Contains(t, out, "pod kubectl/cart is in the mesh (istio)\n")
		assert.Contains(t, out, "configuration: node node-1: /host"+confList+"\n")
		assert.Regexp(t, `at \S+ ADD: redirected by \S+, \d+ rules: selected \(istio, eth0\)`, out)
		assert.Regexp(t, `live rules: [1-9]\d* of the mesh, 0 others`, out)
		code, out, _ := c.meshcni(t, "show", "-n", s.namespace, "cart")
		assert.Equal(t, 0, code)
		assert.Contains(t, out, "ISTIO_OUTPUT")
		code, out, _ = c.meshcni(t, "rules", "-n", s.namespace, "cart", "--family", "4")
		assert.Equal(t, 0, code)
		assert.Contains(t, out, "--dport 3306")
		code, out, _ = c.meshcni(t, "trace", "-n", s.namespace, "cart", "--dst", "10.96.5.5", "--dport", "80", "--uid", "1000")
		assert.Equal(t, 0, code)
		assert.Contains(t, out, "redirect 15001: ")
	})

	step(t, c, "pods that are not captured", func(t *testing.T) {
		code, out, _ := c.meshcni(t, "explain", "-n", s.namespace, "client")
		assert.Equal(t, 0, code, "it is not meant to be")
		assert.Contains(t, out, "pod kubectl/client is not in the mesh (istio)\n")
		code, out, _ = c.meshcni(t, "explain", "-n", s.namespace, "pod/early")
		assert.Equal(t, 1, code)
		assert.Contains(t, out, "now: failed: ")
		assert.True(t, strings.HasPrefix(out, "This pod bypasses the mesh: it started before the plugin was on its node"), out)
		assert.Contains(t, out, "kubectl --namespace "+s.namespace+" delete pod early\n")
		assert.Contains(t, out, "live rules: 0 of the mesh, 0 others")
		code, out, _ = c.meshcni(t, "status")
		assert.Equal(t, 1, code)
		assert.Regexp(t, `node-1 +ready +\S+ +istio +auto: \S+ +1 +\d+ +0 +0 +1 +0\n`, out)
		assert.Contains(t, out, "pod kubectl/early is failed: ")
		code, out, _ = c.meshcni(t, "check")
		assert.Equal(t, 1, code)
		assert.Contains(t, out, "error: pod-bypasses: ")
		assert.Contains(t, out, "  pod/kubectl/early\n")
		assert.Equal(t, 1, strings.Count(out, "error: "), out)
	})

	step(t, c, "a sound installation", func(t *testing.T) {
		s.kubectl(t, "delete", "pod", "early", "--timeout=5m")
		eventually(t, soon, "all is well", func() error {
			if code, out, errs := c.meshcni(t, "status"); code != 0 {
				return errors.New(out + errs)
			}
			return nil
		})
		code, out, errs := c.meshcni(t, "check")
		assert.Equal(t, 0, code, errs)
		assert.NotContains(t, out, "error: ")
	})

	step(t, c, "a pod that is refused", func(t *testing.T) {
		type total struct {
			Total struct{ Captured, Outside, Waiting, Starting int }
		}
		before := decode[total](t, c, "status", "-o", "json")
		s.create(t, pod{name: "wrong", annotations: map[string]string{"traffic.sidecar.istio.io/excludeOutboundPorts": "80a"}})
		eventually(t, soon, "the plugin has refused it", func() error {
			_, out, _ := c.meshcni(t, "explain", "-n", s.namespace, "wrong")
			if !strings.Contains(out, "FailedCreatePodSandBox") {
				return errors.New(out)
			}
			return nil
		})
		code, out, _ := c.meshcni(t, "explain", "-n", s.namespace, "wrong", "--brief")
		assert.Equal(t, 1, code)
		assert.True(t, strings.HasPrefix(out, "This pod is refused, and does not start, because its settings are wrong.\n"), out)
		assert.Contains(t, out, "Give the annotation traffic.sidecar.istio.io/excludeOutboundPorts a value that is allowed")
		_, out, _ = c.meshcni(t, "explain", "-n", s.namespace, "-l", "")
		assert.Contains(t, out, "cart: This pod is captured (")
		assert.Contains(t, out, "client: This pod is not captured, because ")
		assert.Contains(t, out, "wrong: This pod is refused, and does not start, because its settings are wrong.\n")
		var now total
		eventually(t, soon, "the agent names it", func() error {
			now = decode[total](t, c, "status", "-o", "json")
			if now.Total.Waiting != before.Total.Waiting+1 || now.Total.Starting != before.Total.Starting {
				return fmt.Errorf("%+v, and before %+v", now, before)
			}
			return nil
		})
		assert.Equal(t, before.Total.Outside, now.Total.Outside, "it is not outside the mesh")
		code, out, _ = c.meshcni(t, "status")
		assert.Equal(t, 1, code)
		assert.Regexp(t, s.namespace+`/wrong .*pod-refused`, out)
		c.assertExplained(t, "FailedCreatePodSandBox", "cart: This pod is captured (", "wrong: This pod is refused, and does not start")
		s.kubectl(t, "delete", "pod", "wrong", "--timeout=5m")
	})

	step(t, c, "connections between throw-away pods", func(t *testing.T) {
		code, out, errs := c.meshcni(t, "test")
		assert.Equal(t, 0, code, out+errs)
		for _, what := range []string{"outbound", "inbound", "inbound from outside"} {
			assert.Regexp(t, `node-1 +istio +IPv4 +`+what+` +ok\n`, out)
		}
		assert.Regexp(t, `1 of 1 nodes were tried: \d+ ok, 0 failed, 0 unknown\n`, out)
		c.nothingOfTests(t)
		code, out, _ = c.meshcni(t, "test", "--image", image.Tool)
		assert.Equal(t, 1, code, out)
		assert.Contains(t, out, "node-1 istio pod starts: failed: ", "the image has no such program")
	})

	step(t, c, "a drifted pod", func(t *testing.T) {
		ns := netnsOf(t, s.namespace, "cart")
		for _, words := range [][]string{{"nft", "flush", "ruleset"}, {"iptables-legacy", "-t", "nat", "-F"}} {
			if out, err := exec.Command("nsenter", append([]string{"--net=" + ns}, words...)...).CombinedOutput(); err != nil && words[0] == "nft" {
				require.NoError(t, err, string(out))
			}
		}
		code, out, _ := c.meshcni(t, "explain", "-n", s.namespace, "cart")
		assert.Equal(t, 1, code)
		assert.Contains(t, out, "LOST since ADD: ")
		assert.Contains(t, out, "live rules: 0 of the mesh, 0 others")
		eventually(t, soon, "the agent has seen it", func() error {
			if _, out, errs := c.meshcni(t, "check"); !strings.Contains(out, "error: pod-drifted: ") {
				return errors.New(out + errs)
			}
			return nil
		})
	})

	step(t, c, "another's entry after ours", func(t *testing.T) {
		text := fileText(t, confList)
		t.Cleanup(func() { require.NoError(t, os.WriteFile(confList, []byte(text), 0o644)) })
		end := strings.LastIndex(text, "]")
		require.NoError(t, os.WriteFile(confList, []byte(strings.TrimRight(text[:end], " \n")+`,{"type":"linkerd-cni"}`+text[end:]), 0o644))
		eventually(t, soon, "both are told", func() error {
			_, out, errs := c.meshcni(t, "check")
			if !strings.Contains(out, "warning: other-mesh: ") || !strings.Contains(out, "warning: not-last: ") {
				return errors.New(out + errs)
			}
			return nil
		})
	})
	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	uninstall(t, c)
	assertClean(t, c)
}

// netnsOf is the path of a pod's network namespace, as the plugin's record has it.
func netnsOf(t *testing.T, namespace, name string) string {
	t.Helper()
	files, err := filepath.Glob("/run/meshcni/attachments/*.json")
	require.NoError(t, err)
	for _, file := range files {
		var record struct {
			NetNS struct{ Path string }
			Pod   struct{ Namespace, Name string }
		}
		require.NoError(t, json.Unmarshal([]byte(fileText(t, file)), &record))
		if record.Pod.Namespace == namespace && record.Pod.Name == name {
			return record.NetNS.Path
		}
	}
	require.Fail(t, "no record", "%s/%s", namespace, name)
	return ""
}
