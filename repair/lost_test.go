package repair_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/repair"
)

// TestLost: of the pods that are not captured, those that started without a plugin that was installed are evicted. Those that ran before it
// was, that another mesh's plugin may have captured, or that the plugin itself passed over, are only reported.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		// Files have the machine's time.
		installed := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		at := func(container string, when time.Time) {
			require.NoError(t, os.Chtimes(filepath.Join(n.cache, "results", "k8s-"+container+"-eth0"), when, when))
		}
		var known atomic.Bool
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionDelete)(b, o)
			b.cluster.LeaveAtOnce = true
			o.Detect.Lost = &repair.Lost{Neighbours: []string{"istio-cni"}, Since: func() time.Time {
				if known.Load() {
					return installed
				}
				return time.Time{}
			}}
			for container, name := range map[string]string{"c1": "lost", "c2": "before", "c3": "theirs", "c4": "over"} {
				types := []string{"ptp", "portmap"}
				if name == "theirs" {
					types = append(types, "istio-cni")
				}
				n.attach(b.pod(name), container, types...)
				at(container, installed.Add(time.Hour))
			}
			at("c2", installed.Add(-time.Second))
			n.record(b.pod("over"), "c4", false)
		}, bare(t, "lost"), bare(t, "before"), bare(t, "theirs"), bare(t, "over"))
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]int{"uncaptured": 4}, states(b))
		assert.Empty(t, b.outcomes(), "when the plugin was installed is not known")
		known.Store(true)
		time.Sleep(15 * time.Second)
		assert.Equal(t, map[string]int{"evicted not-captured": 1}, b.outcomes())
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]int{"evicted not-captured": 1}, b.outcomes())
		assert.Equal(t, map[string]int{"uncaptured": 3}, states(b))
	})
}

// TestLostPodsOfABoot: a node's 110 pods without a check of their own, which a boot has left without the plugin, are evicted within 70 s of it
// being back, as by --repair=auto. The five that nothing would make anew, and the five that were captured, stay.
func TestLostPodsOfABoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		var pods []*corev1.Pod
		lost := func(kind string, count int, owned bool, plugins ...string) {
			for i := range count {
				name := fmt.Sprintf("%s-%03d", kind, i)
				pod := bare(t, name)
				pod.OwnerReferences = nil
				if owned {
					yes := true
					pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID("of-" + name), Controller: &yes}}
				}
				n.attach(pod, "c-"+name, plugins...)
				pods = append(pods, pod)
			}
		}
		lost("lost", 110, true, "ptp")
		lost("alone", 5, false, "ptp")
		lost("well", 5, true, "ptp", "meshcni")
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionDelete)(b, o)
			b.cluster.LeaveAtOnce = true
			o.NodeBudget, o.SpareUnmanaged = repair.Options{}.WithDefaults().NodeBudget, true
			o.Detect.Lost = &repair.Lost{Since: func() time.Time { return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) }} // before the traces' files
		}, pods...)
		time.Sleep(70 * time.Second)
		synctest.Wait()
		assert.Equal(t, map[string]int{"evicted not-captured": 110, "spared unmanaged": 5}, b.outcomes())
		assert.Equal(t, map[string]int{"captured": 5, "uncaptured": 5}, states(b))
	})
}
