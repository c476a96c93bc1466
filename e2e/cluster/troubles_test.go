package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/internal/doctest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// trouble is one that the troubleshooting page tells how to find and to cure.
type trouble struct {
	// name is what the page's marks call it.
	name string
	// cause brings it about. What it returns ends it, whether or not the remedy has; nil for nothing.
	cause func(t *testing.T, s shop) (end func())
	// bypass says that the pods run uncaptured. Otherwise they do not start, or it is a matter of chance.
	bypass bool
	// away says that no remedy of the page's is to be carried out: ending the cause is all.
	away bool
}

// ten are in the order in which they are caused: the first one's pods are there before the chart, and the last one
// uninstalls it.
var ten = []trouble{
	{name: "pod-before-agent", bypass: true, cause: func(*testing.T, shop) func() { return nil }},
	{name: "wrong-annotation", cause: func(t *testing.T, s shop) func() {
		s.patch(t, `{"metadata": {"annotations": {"traffic.sidecar.istio.io/excludeOutboundPorts": "3306,80a"}}}`)
		return nil
	}},
	{name: "proxy-user", cause: func(t *testing.T, s shop) func() {
		s.patch(t, `{"spec": {"containers": [{"name": "app", "securityContext": {"runAsUser": 1337}}]}}`)
		return nil
	}},
	{name: "excluded-namespace", bypass: true, cause: func(t *testing.T, s shop) func() {
		upgrade(t, s.cluster, "--reuse-values", "--set", "excludeNamespaces={kube-system,shop}")
		eventually(t, soon, "the plugin has the list", func() error {
			if !strings.Contains(fileText(t, confList), `"shop"`) {
				return fmt.Errorf("%s", fileText(t, confList))
			}
			return nil
		})
		s.restart(t)
		return nil
	}},
	{name: "kubeconfig-deleted", cause: func(t *testing.T, s shop) func() {
		s.agentAway(t)
		require.NoError(t, os.Remove(kubeconfig))
		s.kubectl(t, "rollout", "restart", "deployment", "cart")
		return nil
	}},
	{name: "binary-deleted", cause: func(t *testing.T, s shop) func() {
		s.agentAway(t)
		require.NoError(t, os.Remove(binary))
		s.kubectl(t, "rollout", "restart", "deployment", "cart")
		return nil
	}},
	{name: "api-server-stopped", away: true, cause: func(t *testing.T, s shop) func() {
		// An agent that serves its node's pods would have this one.
		s.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "agent=off")
		rolledOut(t, s.cluster)
		uid := s.kubectl(t, "get", "pod", s.podOf(t, "cart"), "-o", "jsonpath={.metadata.uid}")
		s.Server.StopAPI()
		killPod(t, uid) // as when its sandbox crashes: the kubelet starts it again
		return func() { require.NoError(t, s.Server.StartAPI()) }
	}},
	{name: "two-meshes", bypass: true, cause: chainAnotherMesh},
	{name: "conflist-rewritten", cause: func(t *testing.T, s shop) func() {
		stop := fightOver(t)
		s.restart(t)
		return stop
	}},
	{name: "uninstalled-with-pods", cause: func(t *testing.T, s shop) func() {
		uninstall(t, s.cluster)
		return nil
	}},
}

// TestTroubles causes the ten troubles of docs/troubleshooting.md, one after the other. Each is found by the command that
// the page names for it, and cured by the remedy that it names, word for word.
func TestTroubles(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "shop")
	s.create(t, pod{name: "client", outside: true})
	s.deploy(t, pod{name: "cart"})
	s.ready(t, "client")
	s.rolledOut(t)
	install(t, c, "--set", "addDeadline=3s,cni.ownFile=false")
	page := troublesOf(t, "docs/troubleshooting.md")
	require.Len(t, page, len(ten), "the page's")
	for _, tr := range ten {
		t.Run(tr.name, func(t *testing.T) {
			c.ExplainFailure(t)
			if tr.name != ten[0].name {
				c.Run(t, "kubectl", "delete", "events", "--all", "--all-namespaces")
			}
			end := tr.cause(t, s)
			if end == nil {
				end = func() {}
			}
			found := page[tr.name][doctest.Find]
			require.NotEmpty(t, found.Expect, "the page says what is found")
			eventually(t, soon, "the page's command finds it", func() error { return s.block(t, found) })
			if tr.bypass {
				out := s.ip(t, "client") + ":8080"
				assert.Equal(t, "8080 for "+out, s.dial(t, s.podOf(t, "cart"), out), "it bypasses the mesh")
			}
			cure, ok := page[tr.name][doctest.Cure]
			if !tr.away {
				require.True(t, ok, "the page has no remedy")
				require.NoError(t, s.block(t, cure))
				defer end()
			} else {
				require.False(t, ok)
				end()
			}
			s.rolledOut(t)
			if tr.name == "uninstalled-with-pods" {
				s.assertUncaptured(t, s.podOf(t, "cart"), "client")
				return
			}
			eventually(t, soon, "captured", func() error {
				name := s.podOf(t, "cart")
				if got, want := s.dial(t, name, s.ip(t, "client")+":8080"), "15001 for "+s.ip(t, "client")+":8080"; got != want {
					return fmt.Errorf("%s", got)
				}
				return nil
			})
			s.assertCaptured(t, s.podOf(t, "cart"), "client")
		})
		if t.Failed() {
			return
		}
	}
	s.kubectl(t, "delete", "deployments,pods", "--all", "--timeout=5m")
	assert.Empty(t, s.Changes(t))
}

// block runs a block of a page.
func (s shop) block(t *testing.T, b doctest.Block) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), netnstest.Patience)
	defer cancel()
	out, err := b.Run(ctx, proctest.Root(), s.Env()...)
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, out)
	}
	return nil
}

// patch changes the template of the Deployment cart.
func (s shop) patch(t *testing.T, template string) {
	t.Helper()
	s.kubectl(t, "patch", "deployment", "cart", "--patch", `{"spec": {"template": `+template+`}}`)
}

func (s shop) restart(t *testing.T) {
	t.Helper()
	s.kubectl(t, "rollout", "restart", "deployment", "cart")
	s.rolledOut(t)
}

func (s shop) rolledOut(t *testing.T) {
	t.Helper()
	s.kubectl(t, "rollout", "status", "deployment", "cart", "--timeout=5m")
	eventually(t, soon, "the pods before are gone", func() error {
		if names := strings.Fields(s.kubectl(t, "get", "pods", "-l", "app=cart", "-o", "name")); len(names) != 1 {
			return fmt.Errorf("%v", names)
		}
		return nil
	})
}

// agentAway takes the agent from the node, and leaves the plugin there.
func (s shop) agentAway(t *testing.T) {
	t.Helper()
	withoutAgent(t, s.cluster, func() {
		s.Run(t, "helm", "upgrade", release, chart, "--namespace", system, "--reuse-values", "--set", "image.repository=localhost:1/none")
	})
}

// chainAnotherMesh puts the plugin of another mesh into the list, behind ours, and starts a pod with both.
func chainAnotherMesh(t *testing.T, s shop) func() {
	other := filepath.Join(containerd.CNIBinDir, "istio-cni")
	program, err := os.ReadFile(image.ToolProgram())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other, program, 0o755))
	list := fileText(t, confList)
	end := strings.LastIndex(list, "\n  ]")
	require.Positive(t, end)
	writeList(t, list[:end]+`, {"type": "istio-cni"}`+list[end:])
	s.restart(t)
	return func() {
		writeList(t, list)
		require.NoError(t, os.Remove(other))
	}
}

// killPod kills all processes of a pod, that of its sandbox too.
func killPod(t *testing.T, uid string) {
	t.Helper()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	require.NoError(t, err)
	killed := 0
	for _, path := range groups {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), uid) {
			continue
		}
		var pid int
		_, err = fmt.Sscanf(path, "/proc/%d/", &pid)
		require.NoError(t, err)
		if unix.Kill(pid, unix.SIGKILL) == nil {
			killed++
		}
	}
	require.NotZero(t, killed)
}

// troublesOf are a page's blocks that find and cure, by trouble and tag.
func troublesOf(t *testing.T, page string) map[string]map[string]doctest.Block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(proctest.Root(), page))
	require.NoError(t, err)
	blocks, err := doctest.Parse(page, string(text))
	require.NoError(t, err)
	found := map[string]map[string]doctest.Block{}
	for _, b := range blocks {
		if b.Trouble == "" {
			continue
		}
		if found[b.Trouble] == nil {
			found[b.Trouble] = map[string]doctest.Block{}
		}
		require.NotContains(t, found[b.Trouble], b.Tag, b.Trouble)
		found[b.Trouble][b.Tag] = b
	}
	return found
}
