package repair_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/repair"
)

// othersWatch is somebody else's watch of the node's pods.
type othersWatch struct {
	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod
	synced bool
	wrong  error
	subs   []func(types.UID)
}

func (w *othersWatch) Pods() (all []*corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pods {
		all = append(all, p)
	}
	return all
}

func (w *othersWatch) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.synced
}

func (w *othersWatch) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrong
}

func (w *othersWatch) Subscribe(changed func(types.UID)) (cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subs = append(w.subs, changed)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.subs = nil
	}
}

// is changes what the watch knows of a pod; nil: it is gone.
func (w *othersWatch) is(uid types.UID, pod *corev1.Pod) {
	w.mu.Lock()
	if w.pods[uid] = pod; pod == nil {
		delete(w.pods, uid)
	}
	w.synced = true
	subs := w.subs
	w.mu.Unlock()
	for _, tell := range subs {
		tell(uid)
	}
}

// TestOthersWatch: a controller that is given the pods watches none itself, and deals with what was there, what comes and what
// changes.
func TestOthersWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &othersWatch{pods: map[types.UID]*corev1.Pod{}}
		old, well := named(t, "crash-loop", "old"), named(t, "passed", "later-broken")
		b := start(t, func(_ *bench, o *repair.Options) { o.Action, o.Pods = repair.ActionLabel, w }, old, well)
		old, well = b.pod("old"), b.pod("later-broken")
		w.mu.Lock()
		w.pods[old.UID], w.pods[well.UID], w.wrong = old, well, errors.New("no route to host")
		w.mu.Unlock()
		time.Sleep(30 * time.Second) // until the controller has asked what is wrong
		assert.ErrorContains(t, b.ctl.Ready(), "no route to host", "nothing is complete yet")
		assert.Empty(t, b.outcomes())
		w.mu.Lock()
		w.synced, w.wrong = true, nil
		w.mu.Unlock()
		b.settle()
		assert.NoError(t, b.ctl.Ready())
		assert.Equal(t, map[string]int{"labelled check-failed": 1}, b.outcomes())

		broken := named(t, "crash-loop", "later-broken")
		broken.UID = well.UID
		broken = b.cluster.Set(broken)
		w.is(well.UID, broken)
		b.settle()
		assert.Equal(t, map[string]int{"labelled check-failed": 2}, b.outcomes())
		w.is(old.UID, nil)
		b.settle()
		for _, r := range b.cluster.Requests() {
			assert.NotContains(t, []string{"list", "watch"}, r[:min(len(r), 5)], r)
		}
	})
}
