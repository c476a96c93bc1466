package runtime

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// hooked is an agent's pod as runtimeHook.mode "gate" or "capture" has it: it sees the pods' namespaces, and may capture pods there or not.
func hooked(capabilities ...corev1.Capability) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		create, slave := corev1.HostPathDirectoryOrCreate, corev1.MountPropagationHostToContainer
		c := &pod.Spec.Containers[0]
		for i, v := range pod.Spec.Volumes {
			if v.Name == "netns" {
				pod.Spec.Volumes[i].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/run/netns", Type: &create}}
			}
		}
		for i, m := range c.VolumeMounts {
			if m.Name == "netns" {
				c.VolumeMounts[i].MountPath, c.VolumeMounts[i].MountPropagation = "/var/run/netns", &slave
			}
		}
		c.SecurityContext.Capabilities.Add = capabilities
	}
}

// entryGone takes our entry from the network's list, as the runtime sees it; the agent, in its own mounts, does not, and so does not put it back.
func (n *node) entryGone(t testing.TB) {
	t.Helper()
	without := filepath.Join(machine.Dir, "without.conflist")
	require.NoError(t, os.WriteFile(without, []byte(n.named(ptp(false))), 0o600))
	require.NoError(t, unix.Mount(without, networkFile, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(networkFile, 0)); n.stir(t) })
	n.stir(t)
	n.waitNetworks(t, func(networks string) bool { return !strings.Contains(networks, "meshcni") })
}

// stir makes the runtime read its directory again.
func (n *node) stir(t testing.TB) {
	t.Helper()
	path := filepath.Join(containerd.CNIConfDir, "99-stir.conflist")
	require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
	require.NoError(t, os.Remove(path))
}

// connects waits until the agent is connected to the hook, or is not.
func (a *agent) connects(t testing.TB, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("the hook is connected: %t", want), func() error {
		text, err := a.ask(t.Context(), "15014", "/metrics")
		if is := strings.Contains(text, "meshcni_runtime_hook_connected 1\n"); err == nil && is != want {
			err = errors.New("it is not so")
		}
		return err
	})
}

// hooks asserts what the agent says that it does at the hook.
func (a *agent) hooks(t *testing.T, want string) {
	t.Helper()
	text, err := a.ask(t.Context(), "8000", agentapi.NodePath)
	require.NoError(t, err)
	assert.Contains(t, text, `"runtimeHook":"`+want+`"`)
}

// early is a pod of the mesh whose application connects as the first thing it does. Its proxy is there before.
func early(namespace, name string) *corev1.Pod {
	pod := meshed(namespace, name)
	c := pod.Spec.Containers
	c[0], c[1] = c[1], c[0]
	c[1].Args = []string{"probe", "tcp:" + hostAt(elsewhere4, 80)}
	return pod
}

// firstFate is what became of that connection.
func firstFate(t *testing.T, s *sandbox) string {
	t.Helper()
	code, err := s.WaitContainer(t.Context(), "app")
	require.NoError(t, err)
	require.Zero(t, code, s.Output("app"))
	return s.Output("app")
}

const proxied = "proxy:15001 orig=" + elsewhere4

// testHook shows what the runtime's hook does for pods that the network's list does not hand to the plugin: they are captured before their first
// container, or held. A runtime without a hook is as before.
func testHook(t *testing.T, k kind) {
	if !k.hook {
		n := newNode(t, k, ptp(false))
		a := n.runAgent(t)
		requireCaptured(t, n.run(t, meshed(n.namespace(t), "web")))
		a.hooks(t, "off")
		ready, err := a.ask(t.Context(), "8000", "/readyz")
		require.NoError(t, err)
		assert.NotContains(t, ready, "runtime-hook", "what is not there is not missed")
		metrics, err := a.ask(t.Context(), "15014", "/metrics")
		require.NoError(t, err)
		assert.NotContains(t, metrics, "meshcni_runtime_hook_connected", "and raises no alarm")
		assert.Contains(t, a.Output(agentName), "the container runtime has no hook here")
		return
	}
	t.Run("auto", func(t *testing.T) {
		n := newNode(t, k, ptp(false))
		a := n.runAgent(t) // as the chart has it
		a.connects(t, true)
		a.hooks(t, "gate")
		ns := n.namespace(t)
		requireCaptured(t, n.run(t, meshed(ns, "by-add")))
		requireFree(t, n.run(t, plain(ns, "plain")))
		n.entryGone(t)
		requireFree(t, n.run(t, plain(ns, "plain-too")))
		pod := n.create(t, early(ns, "held"))
		s, err := n.RunSandbox(t.Context(), pod)
		require.NoError(t, err)
		require.ErrorContains(t, s.StartContainer(t.Context(), &pod.Spec.Containers[0], nil), "have not set up its redirection")
	})
	t.Run("auto with rights", func(t *testing.T) { // those of repair.mode: repair
		n := newNode(t, k, ptp(false))
		a := n.runAgentAs(t, func(pod *corev1.Pod) {
			pod.Spec.HostPID = true
			pod.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"}
		})
		a.connects(t, true)
		a.hooks(t, "capture")
		ns := n.namespace(t)
		requireCaptured(t, n.run(t, meshed(ns, "both")))
		n.entryGone(t)
		assert.Contains(t, firstFate(t, n.run(t, early(ns, "early"))), proxied)
	})
	t.Run("capture", func(t *testing.T) {
		n := newNode(t, k, ptp(false))
		a := n.runAgentAs(t, hooked("SYS_ADMIN", "NET_ADMIN"), "--runtime-hook=capture")
		a.connects(t, true)
		ns := n.namespace(t)
		requireCaptured(t, n.run(t, meshed(ns, "both"))) // by ADD, and then known
		n.entryGone(t)
		assert.Contains(t, firstFate(t, n.run(t, early(ns, "early"))), proxied)
		s := n.run(t, meshed(ns, "hook"))
		requireCaptured(t, s)
		requireFree(t, n.run(t, plain(ns, "plain")))
		records, err := filepath.Glob(filepath.Join(runDir, "attachments", "meshcni.nri@"+s.ID+"@*.json"))
		require.NoError(t, err)
		require.Len(t, records, 1)
		text, err := os.ReadFile(records[0])
		require.NoError(t, err)
		assert.Contains(t, string(text), `"by":"nri"`)

		// A pod that its mesh refuses is held, with the refusal's words.
		refused := n.create(t, meshed(ns, "refused", annotate("traffic.sidecar.istio.io/includeInboundPorts", "many")))
		held, err := n.RunSandbox(t.Context(), refused)
		require.NoError(t, err, "never refused at RunPodSandbox")
		require.ErrorContains(t, held.StartContainer(t.Context(), &refused.Spec.Containers[0], nil), "includeInboundPorts")

		// Killed, and back: what comes then is captured again.
		require.NoError(t, a.KillContainer(t.Context(), agentName))
		a.start(t)
		a.connects(t, true)
		assert.Contains(t, firstFate(t, n.run(t, early(ns, "again"))), proxied)

		// The runtime restarts.
		n.Kill()
		require.NoError(t, n.Boot())
		a.connects(t, true)
		n.waitNetworks(t, func(networks string) bool { return strings.Contains(networks, n.network()) })
		assert.Contains(t, firstFate(t, n.run(t, early(ns, "restarted"))), proxied)
		require.NoError(t, s.Remove(t.Context()))
		eventually(t, "the record of a pod that has gone goes", func() error {
			if left, _ := filepath.Glob(records[0]); len(left) > 0 {
				return errors.New("it stays")
			}
			return nil
		})
	})
	t.Run("gate", func(t *testing.T) {
		n := newNode(t, k, ptp(false))
		a := n.runAgentAs(t, hooked(), "--runtime-hook=gate")
		a.connects(t, true)
		ns := n.namespace(t)
		requireCaptured(t, n.run(t, meshed(ns, "by-add")))
		n.entryGone(t)
		requireFree(t, n.run(t, plain(ns, "plain")))
		pod := n.create(t, early(ns, "held"))
		s, err := n.RunSandbox(t.Context(), pod)
		require.NoError(t, err)
		for range 2 {
			require.ErrorContains(t, s.StartContainer(t.Context(), &pod.Spec.Containers[0], nil), "have not set up its redirection")
		}
		eventually(t, "the pod has an event", func() error {
			var events corev1.EventList
			if err := n.admin.Try(http.MethodGet, "/api/v1/namespaces/"+ns+"/events", nil, &events); err != nil {
				return err
			}
			for _, e := range events.Items {
				if e.InvolvedObject.Name == "held" && e.Reason == "RuntimeHookHeld" && strings.Contains(e.Message, "redirection") {
					return nil
				}
			}
			return fmt.Errorf("%v", events.Items)
		})
		// An agent that may capture it comes: the same sandbox goes on.
		a.stop(t)
		c := &a.Pod.Spec.Containers[0]
		c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN", "NET_ADMIN"}
		c.Args = append(c.Args, "--runtime-hook=capture")
		a.start(t)
		a.connects(t, true)
		for i := range pod.Spec.Containers {
			eventually(t, "the container starts, as the kubelet tries again", func() error { return s.StartContainer(t.Context(), &pod.Spec.Containers[i], nil) })
		}
		assert.Contains(t, firstFate(t, s), proxied)
	})
	t.Run("alone", func(t *testing.T) { testAlone(t, k) })
}

// testAlone shows an agent with nothing in the network: what one before it has put there goes once the hook is there, pods are captured by the hook, by
// what the agent itself knows, and start in the clear while it is away.
func testAlone(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	before, err := os.ReadFile(networkFile)
	require.NoError(t, err)
	a := n.runAgentAs(t, hooked("SYS_ADMIN", "NET_ADMIN"))
	ns := n.namespace(t)
	chained := n.run(t, meshed(ns, "chained"))
	requireCaptured(t, chained)
	a.stop(t)
	c := &a.Pod.Spec.Containers[0]
	usual := c.Args
	c.Args = append(slices.Clone(usual), "--alone", "--runtime-hook=capture")
	a.start(t)
	a.connects(t, true)
	n.waitNetworks(t, func(networks string) bool { return !strings.Contains(networks, "meshcni") })
	eventually(t, "the token has gone", func() error {
		if _, err := os.Stat(filepath.Join(runDir, "kubeconfig")); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	after, err := os.ReadFile(networkFile)
	require.NoError(t, err)
	assert.JSONEq(t, string(before), string(after))
	assert.FileExists(t, plugin, "the end of a pod needs it")
	require.NoError(t, chained.Remove(t.Context()))
	eventually(t, "the plugin goes with its last pod", func() error {
		if _, err := os.Stat(plugin); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	text, err := a.ask(t.Context(), "8000", "/readyz")
	require.NoError(t, err)
	assert.Contains(t, text, "ok\nalone: ")

	assert.Contains(t, firstFate(t, n.run(t, early(ns, "early"))), proxied)
	requireCaptured(t, n.run(t, meshed(ns, "hook")))
	requireFree(t, n.run(t, plain(ns, "plain")))

	require.NoError(t, a.KillContainer(t.Context(), agentName))
	requireFree(t, n.run(t, meshed(ns, "open")))
	a.start(t)
	a.connects(t, true)
	assert.Contains(t, firstFate(t, n.run(t, early(ns, "again"))), proxied)
	assert.NoFileExists(t, plugin)
	assert.NoFileExists(t, filepath.Join(runDir, "kubeconfig"))

	// Uninstalled, it leaves nothing behind, and the pods that it has captured go on.
	s := n.run(t, meshed(ns, "goes-on"))
	began := time.Now()
	a.stop(t)
	a.uninstall(t.Context(), t, a.Pod)
	t.Logf("uninstalled %s after the agent was told to end", time.Since(began).Round(time.Millisecond))
	requireNoPreinstalled(t)
	after, err = os.ReadFile(networkFile)
	require.NoError(t, err)
	assert.JSONEq(t, string(before), string(after))
	assert.NoFileExists(t, plugin)
	left, _ := filepath.Glob(filepath.Join(runDir, "*"))
	assert.Empty(t, left)
	requireCaptured(t, s)
	requireFree(t, n.run(t, meshed(ns, "after")))

	// And back: the plugin is put into the network again.
	c.Args = usual
	a.start(t)
	a.ready(t)
	requireCaptured(t, n.run(t, meshed(ns, "back")))
}
