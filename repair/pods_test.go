package repair_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
)

// unlisted is a cluster of which nobody lists pods.
type unlisted struct {
	*repairtest.Cluster

	t *testing.T
}

func (u unlisted) ListPods(context.Context, metav1.ListOptions, func(*corev1.Pod) *corev1.Pod) (*corev1.PodList, error) {
	assert.Fail(u.t, "the controller lists pods itself")
	return &corev1.PodList{}, nil
}

// TestOthersWatch: a controller that is given the node's watch makes none itself, and deals with what was there, what comes and what changes.
func TestOthersWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		b := start(t, func(b *bench, o *repair.Options) {
			b.cluster.SetHook(func(verb string, _ types.NamespacedName) error {
				if (verb == "list" || verb == "watch") && !up.Load() {
					return syscall.ECONNREFUSED
				}
				return nil
			})
			w, err := nodepods.New(nodepods.Options{API: b.cluster, Meshes: o.Meshes, Dialects: o.Meshes.Known()})
			require.NoError(t, err)
			ended := make(chan error)
			ctx, stop := context.WithCancel(context.Background())
			go func() { ended <- w.Run(ctx) }()
			t.Cleanup(func() { stop(); assert.NoError(t, <-ended) })
			o.Action, o.Pods = repair.ActionLabel, w
			o.SetCluster(unlisted{b.cluster, t})
		}, named(t, "crash-loop", "old"), named(t, "passed", "later-broken"))
		time.Sleep(3 * time.Minute) // until the watch has asked again
		assert.ErrorContains(t, b.ctl.Ready(), "connection refused", "nothing is complete yet")
		assert.Positive(t, b.counter("meshcni_pods_watch_errors_total")["other"])
		assert.Empty(t, b.outcomes())
		up.Store(true)
		time.Sleep(3 * time.Minute)
		b.settle()
		assert.NoError(t, b.ctl.Ready())
		assert.Equal(t, map[string]int{"labelled check-failed": 1}, b.outcomes())
		b.cluster.Set(named(t, "crash-loop", "later-broken"))
		b.settle()
		assert.Equal(t, map[string]int{"labelled check-failed": 2}, b.outcomes())
		b.cluster.Gone("default", "old")
		b.settle()
	})
}
