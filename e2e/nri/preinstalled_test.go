package nri

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/hook"
	"github.com/meshcni/meshcni/internal/node/hookfile"
	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// The most that the process has of memory between pods, in KiB: its own, and all that is resident, its program's file among it.
const mostOwn, mostResident = 8 << 10, 12 << 10

// programDir has the plugin's program; it goes when all tests are over.
var programDir string

// program is the plugin's, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programDir, "meshcni")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "../../cmd/meshcni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// preinstalled is a node whose runtime starts the plugin by itself. Its in-process agent does not run, unless a test runs it.
type preinstalled struct {
	*node
	server *apiservertest.APIServer
	hookfile.Place
	entry netconf.Config
}

func newPreinstalled(t *testing.T, credentials bool) *preinstalled {
	t.Helper()
	dir := t.TempDir()
	n := &preinstalled{node: newNode(t, hook.Capture), server: apiservertest.NewAPIServer(t), Place: hookfile.In(dir, "meshcni")}
	n.entry = netconf.Config{
		Type: "meshcni", RunDir: n.runDir, Backend: netconf.Backend(ruleset.BackendNftables), PodNamespace: "meshcni-system",
		Kubernetes: netconf.Kubernetes{Kubeconfig: filepath.Join(n.runDir, "kubeconfig"), ExcludeNamespaces: []string{"kube-system"}},
	}
	require.NoError(t, os.MkdirAll(n.Dir, 0o755))
	if credentials {
		n.credentials()
	}
	n.settings(false, nil)
	n.program()
	require.NoError(t, os.Symlink(n.Target, n.Link))
	n.options = []adaptation.Option{adaptation.WithPluginPath(dir)}
	return n
}

func (n *preinstalled) credentials() {
	n.t.Helper()
	path, err := n.server.WriteKubeconfig(n.t.TempDir())
	require.NoError(n.t, err)
	require.NoError(n.t, os.Rename(path, n.entry.Kubernetes.Kubeconfig))
}

// settings writes them, with more keys as a newer agent may.
func (n *preinstalled) settings(gate bool, more map[string]any) {
	n.t.Helper()
	entry := map[string]any{}
	require.NoError(n.t, json.Unmarshal(n.entry.Marshal(), &entry))
	for key, value := range more {
		entry[key] = value
	}
	text, err := json.Marshal(map[string]any{"gate": gate, "entry": entry, "newer": more})
	require.NoError(n.t, err)
	require.NoError(n.t, os.WriteFile(n.Settings+".new", text, 0o600))
	require.NoError(n.t, os.Rename(n.Settings+".new", n.Settings))
}

// program puts the program there anew, as an update does.
func (n *preinstalled) program() {
	n.t.Helper()
	path, err := program()
	require.NoError(n.t, err)
	text, err := os.ReadFile(path)
	require.NoError(n.t, err)
	require.NoError(n.t, os.WriteFile(n.Program+".new", text, 0o755))
	require.NoError(n.t, os.Rename(n.Program+".new", n.Program))
}

// served is a pod of the mesh that the API server has too.
func (n *preinstalled) served(name string, annotations ...string) *api.PodSandbox {
	n.t.Helper()
	p := n.meshed(name, annotations...)
	pods, err := n.pods.Open("")
	require.NoError(n.t, err)
	pod, err := pods.Pod(n.t.Context(), p.GetNamespace(), name)
	require.NoError(n.t, err)
	n.server.SetPod(pod)
	return p
}

// plain is a sandbox of a pod that the API server does not have.
func (n *preinstalled) plain(namespace, name string) *api.PodSandbox {
	return &api.PodSandbox{
		Id: "s-" + namespace + name, Namespace: namespace, Name: name, Uid: "u-" + namespace + name,
		Linux: &api.LinuxPodSandbox{Namespaces: []*api.LinuxNamespace{{Type: "network", Path: netnstest.New(n.t).Path()}}},
	}
}

// pid is that of the process which the runtime has started; 0: there is none.
func (n *preinstalled) pid() int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		text, _ := os.ReadFile(path)
		if strings.TrimRight(string(text), "\x00") == n.Link {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status")); !strings.Contains(string(status), "State:\tZ") {
				return pid
			}
		}
	}
	return 0
}

// memory is what the process has of its own, and all that is resident, its program's file among it, in KiB.
func (n *preinstalled) memory() (own, all int) {
	n.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.pid()))
	require.NoError(n.t, err)
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "RssAnon:" {
			own, _ = strconv.Atoi(words[1])
		} else if len(words) == 3 && words[0] == "VmRSS:" {
			all, _ = strconv.Atoi(words[1])
		}
	}
	return own, all
}

func (n *preinstalled) starts(p *api.PodSandbox) {
	n.t.Helper()
	n.runSandbox(p)
	waittest.Eventually(n.t, p.GetName()+" has its container", func() error { return n.container(p) })
}

func (n *preinstalled) ends() {
	n.t.Helper()
	waittest.Eventually(n.t, "the process has ended", func() error {
		if pid := n.pid(); pid != 0 {
			return fmt.Errorf("it has not: %d", pid)
		}
		return nil
	})
}

// The runtime starts the plugin, with no agent there: pods of the mesh are captured before their first container, by what the API server says; others
// cost it nothing. It is small.
func TestPreinstalled(t *testing.T) {
	n := newPreinstalled(t, true)
	n.start(t)
	pods := make([]*api.PodSandbox, 40)
	for i := range pods {
		pods[i] = n.served(fmt.Sprintf("p%d", i))
		n.starts(pods[i])
		r := n.record(pods[i])
		require.Equal(t, "nri", r.By)
		require.True(t, r.Selected)
	}
	asked := len(n.server.Requests())
	n.starts(n.plain("kube-system", "dns"))
	assert.Len(t, n.server.Requests(), asked, "an excluded namespace is not asked about")
	waittest.Eventually(t, "it is small again", func() error {
		own, all := n.memory()
		if own == 0 || own > mostOwn || all > mostResident {
			return fmt.Errorf("%d KiB of its own, %d KiB resident", own, all)
		}
		t.Logf("after %d pods: %d KiB of its own, %d KiB resident with its program", len(pods), own, all)
		return nil
	})

	refused := n.served("refused", "traffic.sidecar.istio.io/includeInboundPorts", "many")
	n.runSandbox(refused)
	waittest.Eventually(t, "a pod that its mesh refuses is held in its words", func() error {
		if err := n.container(refused); err == nil || !strings.Contains(err.Error(), "includeInboundPorts") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	require.NoError(t, n.RemovePodSandbox(t.Context(), &adaptation.RemovePodSandboxRequest{Pod: pods[0]}))
	waittest.Eventually(t, "the record of a pod that has gone goes", func() error {
		if n.record(pods[0]).By != "" {
			return errors.New("it is there")
		}
		return nil
	})
}

// After a boot there are neither credentials nor an agent: the agent's own pod, excluded and ruled-out pods start; one of the mesh waits, and goes on
// with the same sandbox once there are.
func TestPreinstalledWithoutCredentials(t *testing.T) {
	n := newPreinstalled(t, false)
	n.start(t)
	p := n.served("web")
	n.runSandbox(p)
	require.Error(t, n.container(p))
	n.starts(n.plain("meshcni-system", "meshcni-node-x2x8p"))
	n.starts(n.plain("kube-system", "dns"))
	out := n.plain("shop", "plain")
	out.Annotations = map[string]string{"example.com/a": "b"}
	n.starts(out)
	require.Error(t, n.container(p), "it waits")
	assert.Empty(t, n.record(p).By)
	n.credentials()
	waittest.Eventually(t, "it goes on", func() error { return n.container(p) })
	assert.Equal(t, "nri", n.record(p).By)
}

// Beside an agent that is connected too a pod is captured once. The one that is killed leaves it to the other; a newer agent's settings and program hold,
// the program from the runtime's next start.
func TestPreinstalledBesideAnAgent(t *testing.T) {
	n := newPreinstalled(t, true)
	n.start(t)
	n.run()
	n.starts(n.served("both"))

	n.settings(false, map[string]any{"of_a_newer_agent": true})
	n.program()
	n.starts(n.served("newer"))
	old := n.pid()
	require.NoError(t, syscall.Kill(old, syscall.SIGKILL))
	n.ends()
	n.starts(n.served("agent-alone"))
	for _, name := range []string{"both", "newer", "agent-alone"} {
		assert.Equal(t, "nri", n.record(&api.PodSandbox{Id: "s-" + name}).By, name)
	}
	n.kill()
	n.start(t)
	waittest.Eventually(t, "the runtime starts it again", func() error {
		if pid := n.pid(); pid == 0 || pid == old {
			return errors.New("not yet")
		}
		return nil
	})
	n.starts(n.served("again"))
	assert.Equal(t, "nri", n.record(&api.PodSandbox{Id: "s-again"}).By)
}

// As a gate it captures nothing, and lets a pod go on that another has captured.
func TestPreinstalledGate(t *testing.T) {
	n := newPreinstalled(t, true)
	n.settings(true, nil)
	n.start(t)
	p := n.served("web")
	n.runSandbox(p)
	waittest.Eventually(t, "it is held", func() error {
		if err := n.container(p); err == nil || !strings.Contains(err.Error(), "redirection") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	assert.Empty(t, n.record(p).By)
	n.run() // an agent that captures
	waittest.Eventually(t, "it goes on", func() error { return n.container(p) })
	assert.Equal(t, "nri", n.record(p).By)
}

// Without its settings, which an uninstall removes, the process ends, and pods start without it.
func TestPreinstalledIsTakenBack(t *testing.T) {
	n := newPreinstalled(t, false)
	n.start(t)
	p := n.served("web")
	n.runSandbox(p)
	require.Error(t, n.container(p))
	require.NoError(t, os.Remove(n.Link))
	require.NoError(t, os.Remove(n.Settings))
	n.ends()
	waittest.Eventually(t, "it starts once the runtime has seen the end", func() error { return n.container(p) })
	next := n.served("next")
	n.runSandbox(next)
	require.NoError(t, n.container(next))
	assert.Empty(t, n.record(next).By)
}

// A runtime starts also where what lies there is half of it, or cannot be run.
func TestPreinstalledHalf(t *testing.T) {
	for what, change := range map[string]func(*preinstalled) error{
		"no program":   func(n *preinstalled) error { return os.Remove(n.Program) },
		"no settings":  func(n *preinstalled) error { return os.Remove(n.Settings) },
		"bad settings": func(n *preinstalled) error { return os.WriteFile(n.Settings, []byte("{"), 0o600) },
		"half a program": func(n *preinstalled) error {
			return os.WriteFile(filepath.Join(n.Dir, ".meshcni.tmp"), []byte("\x7fELF"), 0o755)
		},
	} {
		t.Run(what, func(t *testing.T) {
			n := newPreinstalled(t, true)
			require.NoError(t, change(n))
			n.start(t)
			if what == "half a program" {
				n.starts(n.served("web"))
				return
			}
			p := n.plain("kube-system", "dns")
			n.runSandbox(p)
			require.NoError(t, n.container(p))
		})
	}
}
