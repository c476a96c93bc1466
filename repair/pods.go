package repair

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/podid"
)

// Pods knows the pods of one node, because somebody watches them already: an agent that does more than repair needs one watch
// for all of it. A *nodepods.Watch of nodeproxy is one. Its methods are safe for concurrent use. If it also has a method
// ByUID(types.UID) *corev1.Pod, the controller finds a pod by it, without a look at all others.
type Pods interface {
	// Pods returns all pods of the node, with at least what [dialect.Keep] leaves. The controller changes neither them nor the
	// list.
	Pods() []*corev1.Pod
	// Synced reports whether Pods is complete: a pod that it lacks does not exist.
	Synced() bool
	// Ready returns why Pods may be out of date, as the API server's error, or nil.
	Ready() error
	// Subscribe calls changed with the UID of each pod that is new, changed or gone, until the function that it returns is
	// called. A static pod has the UID that the API server gave it, or the runtime's. changed does not block.
	Subscribe(changed func(types.UID)) (cancel func())
}

// index finds one pod of a [Pods] without a look at all others.
type index interface {
	// ByUID returns the pod with the UID that Subscribe tells of, or nil.
	ByUID(uid types.UID) *corev1.Pod
}

// scan is the [index] of Pods that have none.
type scan struct{ Pods }

// ByUID implements [index].
func (s scan) ByUID(uid types.UID) *corev1.Pod {
	pods := s.Pods.Pods()
	of := func(uidOf func(*corev1.Pod) types.UID) *corev1.Pod {
		if i := slices.IndexFunc(pods, func(pod *corev1.Pod) bool { return uidOf(pod) == uid }); i >= 0 {
			return pods[i]
		}
		return nil
	}
	return cmp.Or(of(func(pod *corev1.Pod) types.UID { return pod.UID }), of(podid.Mirrored))
}

// watched are the pods of a node as a controller of its own watches them.
type watched struct{ informer cache.SharedIndexInformer }

// byUID is the informer's index by UID.
const byUID = "uid"

func watch(pods cache.ListerWatcher, known []dialect.Dialect, failed cache.WatchErrorHandlerWithContext) (*watched, error) {
	w := &watched{cache.NewSharedIndexInformer(pods, &corev1.Pod{}, 0, cache.Indexers{byUID: func(obj any) (uids []string, _ error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			uids = append(uids, string(pod.UID))
		}
		return uids, nil
	}})}
	return w, errors.Join(w.informer.SetWatchErrorHandlerWithContext(failed), w.informer.SetTransform(func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return dialect.Keep(known, pod), nil
		}
		return obj, nil // a bookmark or a tombstone
	}))
}

// Pods implements [Pods].
func (w *watched) Pods() (pods []*corev1.Pod) {
	for _, obj := range w.informer.GetStore().List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// ByUID implements [index].
func (w *watched) ByUID(uid types.UID) *corev1.Pod {
	found, err := w.informer.GetIndexer().ByIndex(byUID, string(uid))
	if err != nil || len(found) == 0 {
		return nil
	}
	pod, _ := found[0].(*corev1.Pod)
	return pod
}

// Synced implements [Pods].
func (w *watched) Synced() bool { return w.informer.HasSynced() }

// Ready implements [Pods]. The controller hears of each failure at once.
func (w *watched) Ready() error { return nil }

// Subscribe implements [Pods].
func (w *watched) Subscribe(changed func(types.UID)) (cancel func()) {
	tell := func(obj any) {
		if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = t.Obj
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			changed(pod.UID)
		}
	}
	registration, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) }, DeleteFunc: tell,
	})
	if err != nil {
		return func() {} // it has ended, and nothing changes any more
	}
	return func() { _ = w.informer.RemoveEventHandler(registration) }
}

// pods returns the node's pods that the criteria select, without those that are over.
func (c *Controller) pods() (selected []*corev1.Pod) {
	for _, pod := range c.source.Pods() {
		if c.selects(pod) {
			selected = append(selected, pod)
		}
	}
	return selected
}

func (c *Controller) selects(pod *corev1.Pod) bool {
	return !over(pod) && c.selector.Matches(labels.Set(pod.Labels))
}

// over reports whether a pod has ended in a way that is none of repair's business. A node may have thousands of these.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed && len(pod.Status.InitContainerStatuses) == 0
}

// pod returns one of them, or nil.
func (c *Controller) pod(of types.NamespacedName) *corev1.Pod {
	c.mu.Lock()
	uid, known := c.uids[of]
	c.mu.Unlock()
	if !known {
		return nil
	}
	if pod := c.index.ByUID(uid); pod != nil && c.selects(pod) {
		return pod
	}
	return nil
}

// know notes that a pod is there, under the UID by which the source tells of it.
func (c *Controller) know(uid types.UID, pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[uid], c.uids[key(pod)] = key(pod), uid
}

// changed deals with a pod that is new or changed, and resets the waits of one that is gone.
func (c *Controller) changed(uid types.UID) {
	if pod := c.index.ByUID(uid); pod != nil && c.selects(pod) {
		c.know(uid, pod)
		c.see(pod)
		var wait time.Duration
		c.tracks.change(pod.UID, func(t *track) { wait = t.looks.Take(time.Now()) })
		c.queue.AddAfter(key(pod), wait) // at once, unless it has changed too often of late
		return
	}
	c.mu.Lock()
	of, known := c.keys[uid]
	delete(c.keys, uid)
	if c.uids[of] == uid {
		delete(c.uids, of)
	}
	c.mu.Unlock()
	if known {
		c.queue.Forget(of)
		c.queue.Drop(of)
		c.verifying.Drop(of)
	}
}

// askSource asks somebody else's watch what is wrong with it.
func (c *Controller) askSource() {
	err := c.source.Ready()
	text := ""
	if err != nil {
		text = err.Error()
	}
	c.mu.Lock()
	news := text != c.sourceErr
	c.sourceErr = text
	c.mu.Unlock()
	if err != nil && news {
		c.watchFailed(context.Background(), nil, err)
	}
}

// watchFailed is called whenever listing or watching pods fails.
func (c *Controller) watchFailed(_ context.Context, _ *cache.Reflector, err error) {
	kind := "other"
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		kind = "expired"
	case apierrors.IsForbidden(err):
		kind = "forbidden"
		c.refused(err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		kind = "closed"
	default:
		c.unreachable(err)
	}
	c.metrics.watch.WithLabelValues(kind).Inc()
}
