package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/internal/node/hookfile"
)

var (
	binary     = filepath.Join(containerd.CNIBinDir, "meshcni")
	kubeconfig = "/run/meshcni/kubeconfig"
)

// kept is what stays for the runtime while there are attachments made with the plugin, and with it what it did.
var kept = []string{binary + " new -rwxr-xr-x", "/run/meshcni/plugin.log new -rw-------"}

// ofRecords tells the changes that are the plugin's records of running pods' attachments.
func ofRecords(change string) bool { return strings.HasPrefix(change, "/run/meshcni/attachments") }

// TestChart goes through the life of a release: installed, used, upgraded, taken away.
func TestChart(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "shop")

	s.create(t, pod{name: "early"}, pod{name: "client", outside: true})
	since := install(t, c)

	step(t, c, "the node's files", func(t *testing.T) {
		list, err := os.ReadFile(confList)
		require.NoError(t, err)
		entry, rest := between(string(list), primary)
		assert.Contains(t, entry, `"type": "meshcni"`)
		assert.Equal(t, primary, rest, "all but our entry is as it was")
		var others []string
		changes := c.Changes(t)
		for _, change := range changes {
			if !within(change, "/run/meshcni") {
				others = append(others, change)
			}
		}
		hook := hookfile.In("/opt/nri/plugins", "meshcni")
		dir, bins := filepath.Dir(confList), filepath.Dir(binary)
		assert.ElementsMatch(t, []string{
			confList + " changed -rw-r--r--", binary + " new -rwxr-xr-x", bins + "/.meshcni-history new -rw-------",
			hook.Link + " new Lrwxrwxrwx", hook.Dir + " new drwxr-xr-x", hook.Program + " new -rwxr-xr-x", hook.Settings + " new -rw-------",
			dir + "/.meshcni-reserve-1 new -rw-------", dir + "/.meshcni-reserve-2 new -rw-------", dir + "/.meshcni-reserve-3 new -rw-------",
		}, others)
		assert.Contains(t, changes, kubeconfig+" new -rw-------")
	})

	step(t, c, "no warning", func(t *testing.T) {
		got := c.Run(t, "kubectl", "--namespace", system, "get", "events", "--field-selector", "type=Warning",
			"-o", "custom-columns=:.involvedObject.name,:.reason,:.message", "--no-headers")
		assert.True(t, got == "" || strings.HasPrefix(got, "No resources found"), got)
		for _, line := range strings.Split(agentLog(t, c), "\n") {
			assert.NotContains(t, line, `"level":"ERROR"`)
			if !strings.Contains(line, `"msg":"a pod in the mesh is not captured","namespace":"shop","pod":"early"`) { // which is true
				assert.NotContains(t, line, `"level":"WARN"`)
			}
		}
	})

	step(t, c, "capture", func(t *testing.T) {
		s.create(t,
			pod{name: "cart", annotations: map[string]string{
				"traffic.sidecar.istio.io/excludeInboundPorts":  "9090",
				"traffic.sidecar.istio.io/excludeOutboundPorts": "9090",
			}},
			pod{name: "checked", validated: true},
		)
		s.ready(t, "early", "client", "cart", "checked")
		s.assertUncaptured(t, "early", "client")
		s.assertCaptured(t, "cart", "client")
		s.assertCaptured(t, "checked", "client")
		// The second takes the first one's place.
		for range 2 {
			said := c.Run(t, "helm", "test", release, "--namespace", system, "--timeout", "5m", "--logs")
			assert.Contains(t, said, "POD LOGS: meshcni-test\n")
			assert.Regexp(t, `works +ipv4 inbound: a connection of .* arrived at port 15006`, said, "from outside")
			assert.Regexp(t, `works +ipv4 outbound: tcp to .* as 65532/65532`, said, "of an application")
		}

		cart, client := s.ip(t, "cart"), s.ip(t, "client")
		assert.Equal(t, "9090 for "+client+":9090", s.dial(t, "cart", client+":9090"), "excluded outbound")
		assert.Equal(t, "9090 for "+cart+":9090", s.dial(t, "client", cart+":9090"), "excluded inbound")
		assert.Equal(t, "8080 for 127.0.0.1:8080", s.dial(t, "cart", "127.0.0.1:8080"), "its own loopback")
	})

	step(t, c, "a wrong annotation", func(t *testing.T) {
		const key = "traffic.sidecar.istio.io/excludeInboundPorts"
		s.create(t, pod{name: "wrong", annotations: map[string]string{key: "http"}})
		message := s.event(t, "wrong", "FailedCreatePodSandBox")
		assert.Contains(t, message, key)
		assert.Contains(t, message, "http")
		s.kubectl(t, "annotate", "pod", "wrong", "--overwrite", key+"=9090")
		s.ready(t, "wrong")
		s.assertCaptured(t, "wrong", "client")
	})

	step(t, c, "an upgrade leaves no gap", func(t *testing.T) { testUpgrade(t, s) })
	step(t, c, "no probe of an agent fails while it comes or goes", func(t *testing.T) {
		got := c.Run(t, "kubectl", "--namespace", system, "get", "events", "--field-selector", "reason=Unhealthy",
			"-o", "custom-columns=:.involvedObject.name,:.message", "--no-headers")
		for line := range strings.Lines(got) {
			assert.False(t, strings.HasPrefix(line, "meshcni-node-"), line)
		}
	})
	step(t, c, "settings that apply at once", func(t *testing.T) { testSettings(t, s) })
	step(t, c, "rights", func(t *testing.T) {
		assertConfined(t, agentPid(t), wantedCapabilities(t, c))
		// An agent that ends asks whether it is for good, unless a newer one has taken its place, as that of a new pod may. So only its
		// container ends.
		container := func(owner string) string {
			return c.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/component=node", "-o", "jsonpath={.items[*].status.containerStatuses[*]."+owner+"}")
		}
		before := container("restartCount")
		require.NoError(t, syscall.Kill(agentPid(t), syscall.SIGTERM))
		eventually(t, soon, "the agent runs again", func() error {
			if n, ready := container("restartCount"), container("ready"); n == before || ready != "true" {
				return fmt.Errorf("%s restarts, ready: %s", n, ready)
			}
			return nil
		})
		assertRights(t, c, since, "get pods", "patch events") // for a plugin with the agent's token and for verification; when an event is there already
	})
	step(t, c, "uninstall", func(t *testing.T) { testUninstall(t, s) })
}

// between returns what has been put into a text by one insertion, and the text without it.
func between(with, without string) (insertion, rest string) {
	n := len(with) - len(without)
	for i := 0; n >= 0 && i <= len(without); i++ {
		if with[:i]+with[i+n:] == without {
			return with[i : i+n], without
		}
	}
	return "", with
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// testUpgrade: while the agent is replaced, its plugin stays, and what starts meanwhile is captured.
func testUpgrade(t *testing.T, s shop) {
	agent := s.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/name=meshcni", "-o", "name")
	list := fileText(t, confList)
	stop, gone := watchFor(func() error {
		if _, err := os.Stat(binary); err != nil {
			return err
		}
		text, err := os.ReadFile(confList)
		if err == nil && !strings.Contains(string(text), `"meshcni"`) {
			err = fmt.Errorf("the plugin is not in the list")
		}
		return err
	})
	created := make(chan []string, 1)
	ended := make(chan struct{})
	go func() {
		var names []string
		defer func() { created <- names }()
		for i := 0; i < 8; i++ {
			name := fmt.Sprintf("during-%d", i)
			manifest := "apiVersion: v1\nkind: Pod\n" + strings.Replace(pod{name: name, validated: true}.template(s.mesh), "metadata:\n", "metadata:\n  namespace: "+s.namespace+"\n", 1)
			if out, err := s.TryInput(manifest, "kubectl", "apply", "-f", "-"); err != nil {
				t.Errorf("create %s: %v: %s", name, err, out)
				return
			}
			names = append(names, name)
			// The next one when this one is well, so that they are spread over the upgrade; all are looked at below.
			_, _ = s.Try("kubectl", "--namespace", s.namespace, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=5m")
			select {
			case <-ended:
				return
			default:
			}
		}
	}()
	upgrade(t, s.cluster, "--set", "image.tag="+nextTag)
	close(ended)
	names := <-created
	stop()
	require.NoError(t, <-gone, "the plugin was away")

	now := s.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/name=meshcni", "-o", "name")
	assert.NotEqual(t, agent, now, "the agent's pod was replaced")
	assert.Equal(t, list, fileText(t, confList))
	s.ready(t, names...)
	for _, name := range names {
		s.assertCaptured(t, name, "client")
	}
	restarts := s.kubectl(t, "get", "pods", "-o", "jsonpath={.items[*].status.initContainerStatuses[*].restartCount}")
	assert.NotRegexp(t, "[1-9]", restarts, "redirection was there when they asked for it first")
}

// testSettings: settings that change which pods are captured come with another agent, as the DaemonSet rolls; one that is changed in the
// ConfigMap itself reaches the plugin through the kubelet, without another agent.
func testSettings(t *testing.T, s shop) {
	agent := s.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/name=meshcni", "-o", "name")
	upgrade(t, s.cluster, "--set", "image.tag="+nextTag, "--set", "backend=nftables", "--set", "excludeNamespaces={kube-system,default}")
	eventually(t, soon, "the plugin's settings are the new ones", func() error {
		if text := fileText(t, confList); !strings.Contains(text, `"nftables"`) || !strings.Contains(text, `"default"`) {
			return errors.New(text)
		}
		return nil
	})
	rolled := s.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/name=meshcni", "-o", "name")
	assert.NotEqual(t, agent, rolled)
	const last = "jsonpath={.spec.template.spec.volumes[?(@.name=='config')].projected.sources[1].configMap.name}"
	settings := s.Run(t, "kubectl", "--namespace", system, "get", "daemonset", "meshcni-node", "-o", last)
	text := s.Run(t, "kubectl", "--namespace", system, "get", "configmap", settings, "-o", `jsonpath={.data.config\.yaml}`)
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"config.yaml": strings.Replace(text, "log-level: info", "log-level: debug", 1)}})
	require.NoError(t, err)
	s.Run(t, "kubectl", "--namespace", system, "patch", "configmap", settings, "--type=merge", "--patch", string(patch))
	eventually(t, soon, "the plugin's log level is the new one", func() error {
		if text := fileText(t, confList); !strings.Contains(text, `"debug"`) {
			return errors.New(text)
		}
		return nil
	})
	assert.Equal(t, rolled, s.Run(t, "kubectl", "--namespace", system, "get", "pod", "-l", "app.kubernetes.io/name=meshcni", "-o", "name"))
	s.create(t, pod{name: "nft", validated: true})
	s.ready(t, "nft")
	s.assertCaptured(t, "nft", "client")

	excluded := shop{s.cluster, "default", istio}
	excluded.create(t, pod{name: "excluded"})
	excluded.ready(t, "excluded")
	client := s.ip(t, "client")
	assert.Equal(t, "8080 for "+client+":8080", excluded.dial(t, "excluded", client+":8080"))
	excluded.kubectl(t, "delete", "pod", "excluded", "--timeout=5m")
}

// watchFor calls check again and again, until stopped; gone has its first error, or nil.
func watchFor(check func() error) (stop func(), gone <-chan error) {
	stopped, result := make(chan struct{}), make(chan error, 1)
	go func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for {
			if err := check(); err != nil {
				result <- err
				return
			}
			select {
			case <-stopped:
				result <- nil
				return
			case <-pace.C:
			}
		}
	}()
	return func() { close(stopped) }, result
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// testUninstall: nothing of the release is left on the node, but what running pods still need.
func testUninstall(t *testing.T, s shop) {
	uninstall(t, s.cluster)
	assert.Equal(t, kept, slices.DeleteFunc(s.Changes(t), ofRecords), "running pods may need it for their DEL")
	assert.True(t, slices.ContainsFunc(s.Changes(t), ofRecords), "their DEL takes the records away")
	s.assertCaptured(t, "cart", "client")

	s.create(t, pod{name: "late"})
	s.ready(t, "late")
	s.assertUncaptured(t, "late", "client")

	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	s.assertNothingLeft(t)

	// Installed again, it is uninstalled wholly, since nobody needs it any more.
	install(t, s.cluster)
	uninstall(t, s.cluster)
	assertClean(t, s.cluster)
}

// assertClean waits until the agent is gone, and then holds the node to what it was before.
func assertClean(t *testing.T, c *cluster) {
	t.Helper()
	eventually(t, soon, "the agent is gone", func() error {
		if left := c.Run(t, "kubectl", "get", "pods", "-A", "-l", "app.kubernetes.io/name=meshcni", "-o", "name"); left != "" {
			return fmt.Errorf("%s", left)
		}
		return nil
	})
	assert.Empty(t, c.Changes(t))
}

// assertNothingLeft: every DEL of a pod that is gone has worked. There are as many network namespaces, addresses given and
// results kept as there are pods.
func (s shop) assertNothingLeft(t *testing.T) {
	t.Helper()
	eventually(t, soon, "the pods' networks are gone", func() error {
		ips := strings.Fields(s.Run(t, "kubectl", "get", "pods", "-A", "-o", "jsonpath={.items[*].status.podIP}"))
		pods := len(slices.DeleteFunc(ips, func(ip string) bool { return ip == nodeIP })) // the agent is on the host's network
		for _, pattern := range []string{
			"/run/netns/cni-*", containerd.CNICache + "/networks/e2e/10.*", containerd.CNICache + "/results/e2e-*",
		} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return err
			}
			if len(found) != pods {
				return fmt.Errorf("%d pods have an address, but there are %d of %s", pods, len(found), pattern)
			}
		}
		return nil
	})
}
