//go:build linux

package installer

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/status"
)

// One pod that is tried again and again is one; it no longer counts once it has started.
func TestFailingPods(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, _ := n.agent(nil)
	within(t, patience, "ready", ready(a))
	log, _ := plugin(t, filepath.Join(n.RunDir, "log.sock"))
	for range 20 {
		log.Error("failed", "verb", "ADD", "reason", "pod-refused", "code", 7, "error", "annotation a: no number", "hint", "correct it", "uid", "typo", "namespace", "shop", "pod", "cart")
	}
	log.Error("failed", "verb", "ADD", "code", 11, "uid", "first-11")
	log.Error("failed", "verb", "ADD", "code", 11, "namespace", "shop", "pod", "no-uid")
	log.Error("failed", "verb", "ADD", "code", 11, "uid", "started")
	log.Info("decision", "verb", "ADD", "outcome", "failed", "uid", "first-11")
	log.Info("decision", "verb", "CHECK", "outcome", "checked", "uid", "first-11")
	log.Info("decision", "verb", "ADD", "outcome", "redirected", "uid", "started")
	log.Error("failed", "verb", "DEL", "code", 11, "uid", "deleted")
	log.Info("decision", "verb", "ADD", "outcome", "passed", "reason", "last")
	within(t, patience, "counted", func() bool { return strings.Contains(scrape(t, a), `reason="last"`) })
	all := a.State().Failing
	require.Len(t, all, 2, "that one can name")
	assert.NotZero(t, all[0].At)
	all[0].At = time.Time{}
	assert.Equal(t, FailingPod{Pod: status.ID{Namespace: "shop", Name: "cart", UID: "typo"}, Reason: "pod-refused", Error: "annotation a: no number; correct it"}, all[0])
	assert.Equal(t, "no-uid", all[1].Pod.Name)
	metrics := scrape(t, a)
	for _, want := range []string{`cni_code="7"} 1`, `cni_code="11"} 2`, `cni_code="50"} 0`, `cni_code="101"} 0`, `cni_code="999"} 0`} {
		assert.Contains(t, metrics, "meshcni_plugin_pods_failing{"+want+"\n")
	}
}

func TestFailingPodsAreForgotten(t *testing.T) {
	f := newFailing(meshcni.Identity{})
	now := time.Unix(0, 0)
	f.now = func() time.Time { return now }
	reg := prometheus.NewRegistry()
	reg.MustRegister(f)
	for i := range 2 * maxFailing {
		f.failed(status.ID{UID: fmt.Sprint(i)}, "other", "", "")
	}
	require.Len(t, f.pods, maxFailing)
	now = now.Add(failingFor)
	f.failed(status.ID{UID: "0"}, "101", "", "")
	now = now.Add(time.Second)
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	assert.Equal(t, map[string]float64{"7": 0, "11": 0, "50": 0, "101": 1, "999": 0}, got)
}
