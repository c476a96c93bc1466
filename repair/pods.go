package repair

import (
	"context"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni/dialect"
)

// Pods knows the pods of one node, because somebody watches them already: an agent that does more than repair needs one watch
// for all of it. A *nodepods.Watch of module nodeproxy is one. Its methods are safe for concurrent use.
type Pods interface {
	// Pods returns all pods of the node, with at least what [dialect.Trim] leaves. The controller does not change them.
	Pods() []*corev1.Pod
	// Synced reports whether Pods is complete: a pod that it lacks does not exist.
	Synced() bool
	// Ready returns why Pods may be out of date, as the API server's error, or nil.
	Ready() error
	// Subscribe calls changed with the UID of each pod that is new, changed or gone, until the function that it returns is
	// called. A static pod has the UID that the API server gave it, or the runtime's. changed does not block.
	Subscribe(changed func(types.UID)) (cancel func())
}

// watched are the pods of a node as a controller of its own watches them.
type watched struct{ informer cache.SharedIndexInformer }

func watch(pods cache.ListerWatcher, failed cache.WatchErrorHandlerWithContext) (*watched, error) {
	w := &watched{cache.NewSharedIndexInformer(pods, &corev1.Pod{}, 0, cache.Indexers{})}
	return w, errors.Join(w.informer.SetWatchErrorHandlerWithContext(failed), w.informer.SetTransform(func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return dialect.Trim(pod), nil
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

// pods returns the node's pods that the criteria select.
func (c *Controller) pods() []*corev1.Pod {
	all := c.source.Pods()
	if c.selector.Empty() {
		return all
	}
	var selected []*corev1.Pod
	for _, pod := range all {
		if c.selector.Matches(labels.Set(pod.Labels)) {
			selected = append(selected, pod)
		}
	}
	return selected
}

// pod returns one of them, or nil.
func (c *Controller) pod(of types.NamespacedName) *corev1.Pod {
	for _, pod := range c.pods() {
		if pod.Name == of.Name && pod.Namespace == of.Namespace {
			return pod
		}
	}
	return nil
}

// changed deals with a pod that is new or changed, and resets the waits of one that is gone.
func (c *Controller) changed(uid types.UID) {
	for _, pod := range c.pods() {
		if pod.UID == uid || types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey]) == uid {
			c.mu.Lock()
			c.keys[uid] = key(pod)
			c.mu.Unlock()
			c.see(pod)
			c.enqueue(pod)
			return
		}
	}
	c.mu.Lock()
	of, known := c.keys[uid]
	delete(c.keys, uid)
	c.mu.Unlock()
	if known {
		c.queue.Forget(of)
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
