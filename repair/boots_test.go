package repair_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
)

// TestPodsOfABoot: the 110 pods of a node that booted without the plugin come back within a minute, though all of them are in one namespace
// and broken, and its budget is empty at first. Well ones are left alone, and successors that are broken too wait.
func TestPodsOfABoot(t *testing.T) {
	for _, a := range []repair.Action{repair.ActionDelete, repair.ActionRepair} {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pods []*corev1.Pod
				for i := range 110 {
					pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%03d", i)))
				}
				for i := range 5 {
					pods = append(pods, named(t, "passed", fmt.Sprintf("well-%d", i)))
				}
				b := start(t, func(b *bench, o *repair.Options) {
					o.Action, o.NodeBudget = a, repair.Options{}.WithDefaults().NodeBudget
					b.cluster.LeaveAtOnce = true
				}, pods...)
				time.Sleep(58 * time.Second)
				synctest.Wait()
				assert.Equal(t, 110, b.outcomes()["evicted check-failed"]+b.outcomes()["repaired check-failed"]+b.outcomes()["intact check-failed"], "%v", b.outcomes())
				for i := range 5 {
					assert.Nil(t, b.pod(fmt.Sprintf("well-%d", i)).DeletionTimestamp)
				}
				if a == repair.ActionDelete {
					for i := range 9 {
						b.cluster.Set(with(named(t, "crash-loop", fmt.Sprintf("broken-%03d", i)), func(p *corev1.Pod) { p.UID += "-again" }))
					}
					b.settle()
					assert.Equal(t, 9, b.outcomes()["held successor-broken"], "%v", b.outcomes())
				}
			})
		})
	}
}

// slowly is an API server that takes three seconds for each request about one pod.
type slowly struct{ *repairtest.Cluster }

func (s slowly) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	time.Sleep(3 * time.Second)
	return s.Cluster.Pod(ctx, namespace, name)
}

func (s slowly) Evict(ctx context.Context, pod *corev1.Pod) error {
	time.Sleep(3 * time.Second)
	return s.Cluster.Evict(ctx, pod)
}

// TestPodsOfABootSlowly: at such a server they come back within two minutes.
func TestPodsOfABootSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 110 {
			pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%03d", i)))
		}
		b := start(t, func(b *bench, o *repair.Options) {
			o.Action, o.NodeBudget = repair.ActionDelete, repair.Options{}.WithDefaults().NodeBudget
			b.cluster.LeaveAtOnce = true
			o.SetCluster(slowly{b.cluster})
		}, pods...)
		began, evicted := time.Now(), 0
		for evicted < 110 && time.Since(began) < 2*time.Minute {
			time.Sleep(time.Second)
			synctest.Wait()
			evicted = b.outcomes()["evicted check-failed"]
		}
		assert.Equal(t, 110, evicted, "%v", b.outcomes())
		t.Logf("after %s", time.Since(began).Round(time.Second))
	})
}
