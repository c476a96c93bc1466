package integration

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// attached writes what libcni keeps of a pod's attachment with these plugins.
func attached(t testing.TB, cache string, pod *corev1.Pod, types ...string) {
	t.Helper()
	config := `{"name":"k8s","plugins":[{"type":"` + strings.Join(types, `"},{"type":"`) + `"}]}`
	text := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%[1]q,"config":%[2]q,"ifName":"eth0","networkName":"k8s","netns":"/var/run/netns/cni-1",`+
		`"cniArgs":[["K8S_POD_UID",%[3]q]],"result":{"ips":[{"address":"10.244.1.5/24"}]}}`, "c-"+pod.Name, base64.StdEncoding.EncodeToString([]byte(config)), pod.UID)
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "results"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(cache, "results", "k8s-c-"+pod.Name+"-eth0"), []byte(text), 0o600))
}

// TestDetectionOnARealServer: with the rights of repair-none and nothing else on the node but two directories, a pod that started
// without the plugin gets its event within seconds of its start; one that was captured gets none.
func TestDetectionOnARealServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cache, store := t.TempDir(), attachment.Open(t.TempDir())
	ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
		o.Action, o.Records, o.Detect = repair.ActionNone, store, &repair.Detection{CacheDir: cache}
	})
	ag.ready()
	pending := func(name string) *corev1.Pod {
		pod := podFrom(t, "no-check", w.ns, name, w.node)
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodPending, "", nil
		return w.Create(t, pod)
	}
	starts := func(pod *corev1.Pod, types ...string) {
		attached(t, cache, pod, types...)
		running := podFrom(t, "no-check", w.ns, pod.Name, w.node)
		running.UID = pod.UID
		w.SetStatus(t, running)
	}
	well, silent := pending("well"), pending("silent")
	starts(well, "ptp", "meshcni")
	began := time.Now()
	starts(silent, "ptp", "portmap")
	eventually(t, "the event", func() bool { return len(w.Events(t, w.ns)["silent"]) > 0 })
	t.Logf("told after %s", time.Since(began))
	got := w.Events(t, w.ns)
	assert.Empty(t, got["well"])
	assert.Contains(t, fmt.Sprint(got["silent"]), "MeshNotCaptured")
	pods := ag.counts("meshcni_pods")
	assert.Equal(t, []int{2, 1, 0}, // with the world's own pod, whose check has passed
		[]int{pods["captured"], pods["uncaptured"], pods["cannot-tell"]})
	for what := range w.s.Calls(t, ag.user) {
		assert.NotContains(t, what, "FORBIDDEN")
		assert.NotEqual(t, "get namespaces", what, "detection reads nothing twice")
	}
	assert.Zero(t, reads(t, w.s, ag.user), "detection reads nothing twice")
}

// TestUncapturedIsNotDrifted: of two running pods without rules, one never had any, and the other one's were removed, as its
// record tells. Verification and repair tell them apart, on the kernel; what repair writes is on record.
func TestUncapturedIsNotDrifted(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups)
	for _, backend := range backends[:2] {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			silent, robbed := live(t, w, "no-check", "silent"), live(t, w, "no-check", "robbed")
			store := attachment.Open(t.TempDir())
			netns := robbed.net.Pod.ID()
			require.NoError(t, store.Write(attachment.Record{
				ID: attachment.ID{Network: "k8s", ContainerID: "c-robbed", IfName: "eth0"}, NetNS: attachment.NetNS{Dev: netns.Dev, Ino: netns.Ino},
				Pod: status.ID{UID: string(robbed.UID)}, Selected: true, Reason: "selected", Backend: backend, By: "ADD",
			}))
			ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
				o.Action, o.Backend, o.Records, o.VerifyInterval = repair.ActionNone, backend, store, 100*time.Millisecond
			})
			eventually(t, "both are verified", func() bool {
				n := ag.counts("meshcni_verifications_total")
				return n["uncaptured"] > 0 && n["drifted"] > 0
			})
			eventually(t, "both are told of", func() bool { e := w.Events(t, w.ns); return len(e["silent"]) > 0 && len(e["robbed"]) > 0 })
			events := w.Events(t, w.ns)
			assert.Contains(t, fmt.Sprint(events["silent"]), "MeshNotCaptured")
			assert.NotContains(t, fmt.Sprint(events["silent"]), "Drifted")
			assert.Contains(t, fmt.Sprint(events["robbed"]), "MeshRulesDrifted")
			assert.NotContains(t, fmt.Sprint(events["robbed"]), "NotCaptured")
			assert.Equal(t, 1, ag.counts("meshcni_pods")["uncaptured"])
			ag.stop()

			cache := t.TempDir()
			attached(t, cache, silent.Pod, "ptp")
			ag = runAgent(t, w.s, w.node, func(o *repair.Options) {
				o.Action, o.Backend, o.Records = repair.ActionRepair, backend, store
				o.Detect = &repair.Detection{CacheDir: cache, Act: true}
			})
			ag.outcome("repaired not-captured")
			eventually(t, "the record counts", func() bool { return ag.counts("meshcni_pods")["captured"] == 3 }) // and the world's own pod
			r, err := store.Read(attachment.ID{Network: "k8s", ContainerID: "c-silent", IfName: "eth0"})
			require.NoError(t, err)
			assert.Equal(t, []string{"repair", string(backend), string(silent.UID), "/var/run/netns/cni-1"}, []string{r.By, string(r.Backend), r.Pod.UID, r.NetNS.Path})
			assert.True(t, r.NetNS.Is(silent.net.Pod.ID()))
			var rules bytes.Buffer
			list := exec.Command("nft", "list", "ruleset")
			list.Stdout = &rules
			require.NoError(t, silent.net.Pod.Run(list))
			assert.Contains(t, rules.String(), "15001")
			assert.False(t, slices.ContainsFunc(ag.ctl.Pods(), func(p status.Pod) bool { return p.State != "captured" }))
		})
	}
}
