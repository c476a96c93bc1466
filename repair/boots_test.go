package repair_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/repair"
)

// started sets when the kubelet first had the pod.
func started(p *corev1.Pod, at time.Time) *corev1.Pod {
	at = at.Truncate(time.Second)
	p.Status.StartTime = &metav1.Time{Time: at}
	return p
}

// TestPodsOfABoot: the 110 pods of a node that booted without the plugin come back within a minute, though all of them are broken, and
// by an ordinary budget that is empty. Well ones are left alone. Without PutBack the breaker holds all of them.
func TestPodsOfABoot(t *testing.T) {
	for _, a := range []repair.Action{repair.ActionDelete, repair.ActionRepair} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprint(a, " known ", known), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					boot := time.Now()
					var pods []*corev1.Pod
					for i := range 110 {
						pods = append(pods, started(named(t, "crash-loop", fmt.Sprintf("broken-%03d", i)), boot.Add(-time.Hour)))
					}
					for i := range 5 {
						pods = append(pods, started(named(t, "passed", fmt.Sprintf("well-%d", i)), boot.Add(-time.Hour)))
					}
					b := start(t, func(b *bench, o *repair.Options) {
						o.Action, o.NodeBudget = a, repair.Options{}.WithDefaults().NodeBudget
						b.cluster.LeaveAtOnce = true
						if known {
							o.PutBack = func() time.Time { return boot.Add(30 * time.Second) }
						}
					}, pods...)
					time.Sleep(58 * time.Second)
					synctest.Wait()
					done := b.outcomes()["evicted check-failed"] + b.outcomes()["repaired check-failed"] + b.outcomes()["intact check-failed"]
					t.Logf("%d of 110 pods within a minute: %v", done, b.outcomes())
					if known {
						assert.Equal(t, 110, done)
					} else {
						assert.Less(t, done, 50)
					}
					for i := range 5 {
						assert.Nil(t, b.pod(fmt.Sprintf("well-%d", i)).DeletionTimestamp)
					}
				})
			})
		}
	}
}

// TestABootExplainsNoSuccessor: of pods that broke at a boot, the successors that are broken too are no matter of the boot, so the breaker
// holds them.
func TestABootExplainsNoSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot := time.Now()
		var pods []*corev1.Pod
		for i := range 9 {
			pods = append(pods, started(named(t, "crash-loop", fmt.Sprintf("broken-%d", i)), boot.Add(30*time.Second+time.Duration(i)*time.Second)))
		}
		var unready atomic.Bool // until the controller has seen all of them: the breaker goes by those it knows
		unready.Store(true)
		b := start(t, func(b *bench, o *repair.Options) {
			o.Action, o.NodeBudget = repair.ActionDelete, repair.Options{}.WithDefaults().NodeBudget
			b.cluster.LeaveAtOnce = true
			o.PutBack = func() time.Time { return boot.Add(20 * time.Second) }
			o.Installed = func() error {
				if unready.Load() {
					return errors.New("not ready")
				}
				return nil
			}
		}, pods...)
		b.settle()
		require.Equal(t, 9, b.outcomes()["held plugin-not-ready"])
		unready.Store(false)
		time.Sleep(5 * time.Second)
		b.settle()
		assert.GreaterOrEqual(t, b.outcomes()["held too-many-broken"], 8, "%v", b.outcomes())
		assert.LessOrEqual(t, b.outcomes()["evicted check-failed"], 4, "%v", b.outcomes())
	})
}
