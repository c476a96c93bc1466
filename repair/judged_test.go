package repair_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// TestMeshIsAskedOnce: a change of a healthy captured pod asks the mesh at most twice, and a quiet minute not at all, with detection,
// verification by the real [repair.InPlace], and metrics. So it is where the namespace decides.
func TestMeshIsAskedOnce(t *testing.T) {
	for name, configure := range map[string]func(*bench, *repair.Options){
		"by itself": func(*bench, *repair.Options) {}, "by its namespace": excludingOff(repair.ActionRepair),
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			synctest.Test(t, func(t *testing.T) {
				n := newTraces(t)
				shop := with(bare(t, "cart"), inShop)
				b := start(t, func(b *bench, o *repair.Options) {
					configure(b, o)
					n.detecting(repair.ActionRepair)(b, o)
					mesh := o.Meshes.Known()[0]
					decline := mesh.Policy.Decline
					mesh.Policy.Decline = func(pod *corev1.Pod, proxy *corev1.Container) (status.Code, string) {
						asked.Add(1)
						if decline != nil {
							return decline(pod, proxy)
						}
						return "", ""
					}
					o.Meshes, o.VerifyInterval, o.ProcRoot = dialect.SetOf(mesh), time.Second, t.TempDir()
					o.SetRedirector(nil)
					pod, err := b.cluster.Pod(t.Context(), "shop", "cart")
					assert.NoError(t, err)
					n.attach(pod, "c1", "ptp", "meshcni")
					n.record(pod, "c1", true)
				}, shop)
				minute := func() {
					for range 6 {
						time.Sleep(10 * time.Second)
						_ = b.counter("meshcni_pods")
						assert.Equal(t, "captured recorded", rowOf(b, "cart"))
					}
				}
				minute()
				before := asked.Load()
				assert.Positive(t, before)
				minute()
				assert.Equal(t, before, asked.Load(), "while nothing changes")
				pod, err := b.cluster.Pod(t.Context(), "shop", "cart")
				assert.NoError(t, err)
				pod.Labels["changed"] = "yes"
				b.cluster.Set(pod)
				minute()
				after := asked.Load() - before
				assert.Positive(t, after)
				assert.LessOrEqual(t, after, int64(2), "by one change")
			})
		})
	}
}
