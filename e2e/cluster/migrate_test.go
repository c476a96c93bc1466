package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/onenode"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// switched are the plugins that the cluster is moved from: each has a stand-in whose agent does to the node what the real one does.
// killed is one whose agent leaves its entry and its program behind.
type switched struct {
	plugin string
	mesh   mesh
	chain  string // of its rules
	killed bool
}

// switchedMeshes are the meshes by their dialects, whose pods have the annotation by which the stand-in knows them.
func switchedMeshes() map[string]mesh {
	all := map[string]mesh{"istio": istio}
	for _, m := range otherMeshes() {
		all[m.dialect] = m
	}
	linkerd := all["linkerd"]
	linkerd.annotations = map[string]string{"linkerd.io/proxy-version": "v1"}
	all["linkerd"] = linkerd
	for name, m := range all {
		m.annotations = maps.Clone(m.annotations)
		all[name] = m
	}
	return all
}

// TestMigrate: report, ours beside theirs, a switch after which a pod is captured by ours alone, back, and theirs alone again.
func TestMigrate(t *testing.T) {
	meshes := switchedMeshes()
	for _, from := range []switched{
		{plugin: "istio-cni", mesh: meshes["istio"], chain: "ISTIO_OUTPUT", killed: true},
		{plugin: "linkerd-cni", mesh: meshes["linkerd"], chain: "PROXY_INIT_OUTPUT"},
	} {
		moveOver(t, from)
	}
}

// peerOn puts a stand-in of a plugin onto the node. Leave takes it away, at the latest when the test ends.
func peerOn(t *testing.T, c *cluster, from switched) (leave func()) {
	t.Helper()
	text := fileText(t, filepath.Join(proctest.Root(), "e2e", "testdata", "peers", from.plugin+".yaml"))
	if from.killed {
		text = strings.Replace(text, `"`+from.plugin+`"`, `"`+from.plugin+`", "killed"`, 1)
	}
	c.Apply(t, text)
	leave = sync.OnceFunc(func() {
		out, err := c.TryInput(text, "kubectl", "delete", "--ignore-not-found", "--wait", "--timeout=5m", "-f", "-")
		assert.NoError(t, err, "%s: another test could not make the namespace again", out)
		assert.NoError(t, os.WriteFile(confList, []byte(primary), 0o644))
		_ = os.Remove(filepath.Join(containerd.CNIBinDir, from.plugin))
	})
	t.Cleanup(leave)
	hasEntry(t, from.plugin, true)
	return leave
}

func hasEntry(t *testing.T, plugin string, want bool) {
	t.Helper()
	eventually(t, soon, fmt.Sprintf("%s is in the list: %v", plugin, want), func() error {
		if text := fileText(t, confList); strings.Contains(text, `"type": "`+plugin+`"`) != want {
			return errors.New(text)
		}
		return nil
	})
}

// chains are the rules of iptables in the network namespace of a pod for which our plugin was called.
func chains(t *testing.T, namespace, name string) string {
	t.Helper()
	out, err := exec.Command("nsenter", "--net="+netnsOf(t, namespace, name), "iptables-save").CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

func moveOver(t *testing.T, from switched) {
	c := sharedCluster(t)
	name := from.plugin
	if from.killed {
		name += "-killed"
	}
	t.Run(name, func(t *testing.T) {
		s := newShop(t, c, "from-"+name)
		s.mesh = from.mesh
		peerOn(t, c, from)
		s.create(t, pod{name: "client", outside: true}, pod{name: "old"})
		s.ready(t, "client", "old")
		s.assertCaptured(t, "old", "client")

		// 1 is one with something to decide, 3 one without live rules: agents that may enter pods are not installed.
		code, out, errs := c.meshcni(t, "migrate", "--from", from.plugin)
		assert.Contains(t, []int{0, 3}, code, errs)
		assert.Contains(t, out, "from "+from.plugin)
		install(t, c, "--set", "backend=nftables", "--set", "dialect="+from.mesh.dialect)
		hasEntry(t, from.plugin, true)
		s.create(t, pod{name: "both"})
		s.ready(t, "both")
		s.assertCaptured(t, "both", "client")

		code, out, errs = c.meshcni(t, "migrate", "switch", nodeName, "--dry-run")
		assert.Equal(t, 0, code, errs)
		assert.Contains(t, out, "-      \"type\": \""+from.plugin+"\"")
		hasEntry(t, from.plugin, true)
		code, _, errs = c.meshcni(t, "migrate", "switch", nodeName)
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, "nothing was changed")

		before := fileText(t, confList)
		interrupted(t, c, "no agent of "+from.plugin+" runs there")
		code, out, errs = c.meshcni(t, "migrate", "switch", nodeName, "--yes", "--watch=3s")
		require.Equal(t, 0, code, out+errs)
		assert.Contains(t, out, nodeName+": going on\n")
		assert.Contains(t, out, s.namespace+"/both")
		assert.Contains(t, out, s.namespace+"/old")
		hasEntry(t, from.plugin, false)
		s.create(t, pod{name: "new"})
		s.ready(t, "new")
		s.assertCaptured(t, "new", "client")
		assert.NotContains(t, chains(t, s.namespace, "new"), from.chain, "ours alone")

		if from.killed { // nobody but us can put its entry back
			c.Run(t, "kubectl", "delete", "daemonset", "--namespace="+from.mesh.dialect+"-system", "--all", "--cascade=foreground", "--wait")
		}
		code, out, errs = c.meshcni(t, "migrate", "back", nodeName, "--yes", "--watch=3s")
		require.Equal(t, 0, code, out+errs)
		hasEntry(t, from.plugin, true)
		s.create(t, pod{name: "again"})
		s.ready(t, "again")
		if from.killed {
			assert.Equal(t, before, fileText(t, confList), "byte for byte")
		} else { // its agent puts it last
			assert.Contains(t, chains(t, s.namespace, "again"), from.chain)
		}
		assert.Empty(t, c.Run(t, "kubectl", "get", "pods", "-A", "-l", "meshcni.io/node-job", "-o", "name"))

		s.kubectl(t, "delete", "pods", "both", "new", "again", "--timeout=5m")
		uninstall(t, c)
		s.create(t, pod{name: "theirs"})
		s.ready(t, "theirs")
		s.assertCaptured(t, "theirs", "client")
		s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	})
	assertClean(t, c)
}

// interrupted runs the switch and sends it SIGINT once it has said something.
func interrupted(t *testing.T, c *cluster, after string) {
	t.Helper()
	path, err := onenode.Program("kubectl")
	require.NoError(t, err)
	cmd := exec.Command(path, "meshcni", "migrate", "switch", nodeName, "--yes")
	cmd.Dir, cmd.Env = proctest.Root(), append(os.Environ(), c.Env()...)
	var said watched
	said.want, said.seen = after, make(chan struct{})
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-said.seen:
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		err = <-ended
	case err = <-ended:
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, said.String())
	assert.Equal(t, 1, exit.ExitCode(), said.String())
	assert.Contains(t, said.String(), "interrupted; the same command goes on")
}

// watched is output that is waited for.
type watched struct {
	mu   sync.Mutex
	text bytes.Buffer
	want string
	seen chan struct{}
	once sync.Once
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if strings.Contains(w.text.String(), w.want) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
