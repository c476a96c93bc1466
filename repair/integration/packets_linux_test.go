package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
)

// The connections that tell whether a pod is in the mesh: one out, one in.
const (
	outbound = "pod tcp 1000/1000 -> 10.96.5.5:80"
	inbound  = "out tcp 0/0 -> 10.244.1.5:8080"
)

var (
	bypassing = map[string]string{outbound: "out:80 orig=10.96.5.5:80", inbound: "app:8080 orig=10.244.1.5:8080"}
	captured  = map[string]string{outbound: "proxy:15001 orig=10.96.5.5:80", inbound: "proxy:15006 orig=10.244.1.5:8080"}
)

// livingPod is a pod object whose process really runs, in a real network namespace
// with the pod's addresses, and sends and takes connections.
type livingPod struct {
	*corev1.Pod
	net *netnstest.World
}

func live(t testing.TB, w *world, file, name string) livingPod {
	t.Helper()
	pod := podFrom(t, file, w.ns, name, w.node)
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}, {IP: "fd00:10:244::5"}}
	p := livingPod{w.Create(t, pod), netnstest.NewWorld(t, netnstest.Options{})}
	podproctest.Start(t, p.net.Pod, podproctest.Plain("kubepods/burstable/pod%s/5ad0d8f4c9b1", string(p.UID)))
	return p
}

// fates sends the packets.
func (p livingPod) fates(t testing.TB) map[string]string {
	t.Helper()
	var probes []netnstest.Probe
	for name := range bypassing {
		probe, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		probes = append(probes, probe)
	}
	return p.net.Run(probes)
}

// backends are those of this machine that fresh rules and drift are shown with.
var backends = []ruleset.Backend{ruleset.BackendNftables, ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy}

// TestRepairInPlace: the fate of a broken pod's connections changes while its
// process runs on, and that of its neighbours' does not, who have the very same addresses.
func TestRepairInPlace(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups)
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			broken := live(t, w, "crash-loop", "broken")
			other := live(t, w, "other-exit-code", "other")
			require.Equal(t, bypassing, broken.fates(t))
			require.Equal(t, bypassing, other.fates(t))

			ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
				o.Action, o.Backend = "repair", backend
			})
			ag.outcome("repaired check-failed")
			assert.Equal(t, captured, broken.fates(t))
			assert.Equal(t, bypassing, other.fates(t), "it is found by its UID, not by its address")
			eventually(t, "event", func() bool { return len(w.Events(t, w.ns)["broken"]) == 1 })
			assert.Equal(t, []string{"MeshRepairRepaired"}, w.Events(t, w.ns)["broken"])
			assert.Equal(t, broken.UID, w.Pod(t, w.ns, "broken").UID, "the same pod")

			// The kubelet starts the check again, which now succeeds.
			next := podFrom(t, "recovered", w.ns, "broken", w.node)
			next.UID, next.Status.PodIPs = broken.UID, broken.Status.PodIPs
			w.SetStatus(t, next)
			ag.outcome("recovered recovered")
			made := w.s.Calls(t, ag.user)
			require.NotEmpty(t, made, "the agent's own calls")
			for what := range made {
				assert.False(t, strings.Contains(what, "delete") || strings.Contains(what, "pods/"), "%s: nothing is written to the pod", what)
			}

			// A controller that starts later finds nothing to do but to see that.
			ag.stop()
			w.SetStatus(t, withStatus(broken.Pod, w.Pod(t, w.ns, "broken").UID))
			again := runAgent(t, w.s, w.node, func(o *repair.Options) {
				o.Action, o.Backend = "repair", backend
			})
			again.outcome("intact check-failed")
			assert.Equal(t, captured, broken.fates(t))
		})
	}
}

// TestRepairBetweenAttempts: where no pause process runs, nothing of a pod runs while its check waits to be started again. The runtime's
// cache, as libcni writes it, names its network namespace, so it is mended then, and the next attempt succeeds.
func TestRepairBetweenAttempts(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers)
	w := newWorld(t)
	pod := podFrom(t, "crash-loop", w.ns, "waits", w.node)
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}, {IP: "fd00:10:244::5"}}
	p := livingPod{w.Create(t, pod), netnstest.NewWorld(t, netnstest.Options{})}
	other := netnstest.NewWorld(t, netnstest.Options{}) // with the same addresses, and nobody's

	bin, cache := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "bridge"), []byte(`#!/bin/sh
case "$CNI_COMMAND" in
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"address":"10.244.1.5/24","interface":0},{"address":"fd00:10:244::5/64","interface":0}]}' ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
`), 0o755))
	conf, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"k8s","plugins":[{"type":"bridge"}]}`))
	require.NoError(t, err)
	_, err = libcni.NewCNIConfigWithCacheDir([]string{bin}, cache, nil).AddNetworkList(t.Context(), conf, &libcni.RuntimeConf{
		ContainerID: "c0ffee", NetNS: p.net.Pod.Path(), IfName: "eth0",
		Args: [][2]string{{"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", string(p.UID)}},
	})
	require.NoError(t, err)
	require.Equal(t, bypassing, p.fates(t))

	ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
		o.Action, o.Backend = repair.ActionRepair, ruleset.BackendNftables
		o.Detect = &repair.Detection{CacheDir: cache}
	})
	ag.outcome("repaired check-failed")
	assert.Equal(t, captured, p.fates(t))
	assert.Equal(t, bypassing, livingPod{nil, other}.fates(t))
	assert.Zero(t, ag.counts("meshcni_repair_outcomes_total")["no-process no-process"])
	next := podFrom(t, "recovered", w.ns, "waits", w.node)
	next.UID, next.Status.PodIPs = p.UID, p.Status.PodIPs
	w.SetStatus(t, next)
	ag.outcome("recovered recovered")
}

func withStatus(pod *corev1.Pod, uid types.UID) *corev1.Pod {
	out := pod.DeepCopy()
	out.UID = uid
	return out
}

// TestDrift: the rules of a running pod go away; it is noticed, and put back if
// that is allowed.
func TestDrift(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups)
	for _, backend := range backends[:2] {
		for _, action := range []repair.Action{repair.ActionNone, repair.ActionRepair} {
			t.Run(string(backend)+"/"+string(action), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				pod := live(t, w, "recovered", "web-0")
				putRules(t, backend, pod)
				require.Equal(t, captured, pod.fates(t))
				w.Remove(t, w.ns, "well-0") // it has no process to verify
				defer w.make(t, "passed", "well-0")

				ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
					o.Action, o.VerifyInterval, o.Backend = action, 200*time.Millisecond, backend
				})
				results := func() map[string]int { return ag.counts("meshcni_verifications_total") }
				eventually(t, "verified", func() bool { return results()["intact"] >= 2 })
				assert.Zero(t, results()["drifted"])
				assert.Zero(t, reads(t, w.s, ag.user), "nothing wrong costs no request")

				require.NoError(t, pod.net.Pod.Run(exec.Command("nft", "flush", "ruleset")))
				if action == repair.ActionNone {
					eventually(t, "noticed", func() bool { return results()["drifted"] >= 2 })
					assert.Equal(t, bypassing, pod.fates(t), "and left alone")
					eventually(t, "event", func() bool { return len(w.Events(t, w.ns)["web-0"]) > 0 })
					assert.Equal(t, []string{"MeshRulesDrifted"}, w.Events(t, w.ns)["web-0"])
					return
				}
				eventually(t, "put back", func() bool { return results()["restored"] >= 1 })
				assert.Equal(t, captured, pod.fates(t))
				eventually(t, "events", func() bool { return len(w.Events(t, w.ns)["web-0"]) == 2 })
				assert.ElementsMatch(t, []string{"MeshRulesDrifted", "MeshRulesRestored"}, w.Events(t, w.ns)["web-0"])
				assert.Zero(t, ag.counts("meshcni_pods")["drifted"])
			})
		}
	}
}

// putRules puts the pod's rules there as the plugin would have.
func putRules(t testing.TB, backend ruleset.Backend, pod livingPod) {
	t.Helper()
	m := &repair.InPlace{Meshes: dialect.SetOf(mesh), Backend: backend}
	result, err := m.Apply(t.Context(), pod.Pod)
	require.NoError(t, err)
	require.True(t, result.Changed)
}

// TestRulesOfAbsentIptables: an agent without iptables does not take the rules of
// a plugin that has it for missing, and does not put a second set beside them.
func TestRulesOfAbsentIptables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups)
	for _, backend := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pod := live(t, w, "recovered", "web-0")
			putRules(t, backend, pod)
			m := &repair.InPlace{Meshes: dialect.SetOf(mesh), Path: t.TempDir()}
			_, err := m.Check(t.Context(), pod.Pod)
			require.ErrorIs(t, err, repair.ErrVariant)
			_, err = m.Apply(t.Context(), pod.Pod)
			require.ErrorIs(t, err, repair.ErrVariant)
			assert.Equal(t, captured, pod.fates(t))
		})
	}
}
