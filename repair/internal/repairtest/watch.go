package repairtest

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// here reports whether an object is a pod of the cluster's node. A pod stays so as long as it exists.
func (c *Cluster) here(o runtime.Object) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && pod.Spec.NodeName == c.Node
}

// ListPods lists the pods of the cluster's node.
func (c *Cluster) ListPods(ctx context.Context, _ metav1.ListOptions, keep func(*corev1.Pod) *corev1.Pod) (*corev1.PodList, error) {
	if err := c.asked(ctx, "list", types.NamespacedName{}); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(c.revision)}}
	for _, pod := range c.pods {
		if c.here(pod) {
			list.Items = append(list.Items, *keep(pod.DeepCopy()))
		}
	}
	return list, nil
}

// WatchPods watches them.
func (c *Cluster) WatchPods(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, types.NamespacedName{}, o, c.here)
}

// ListOne lists a namespace's metadata; other kinds are not there.
func (c *Cluster) ListOne(ctx context.Context, _ schema.GroupVersionResource, _, name string, _ metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if err := c.asked(ctx, "list", types.NamespacedName{Name: name}); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(c.revision)}}
	if ns := c.spaces[name]; ns != nil {
		list.Items = append(list.Items, *ns)
	}
	return list, nil
}

// WatchOne watches it.
func (c *Cluster) WatchOne(ctx context.Context, _ schema.GroupVersionResource, _, name string, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, types.NamespacedName{Name: name}, o, func(o runtime.Object) bool {
		ns, ok := o.(*metav1.PartialObjectMetadata)
		return ok && ns.Name == name
	})
}

func (c *Cluster) watch(ctx context.Context, of types.NamespacedName, o metav1.ListOptions, has func(runtime.Object) bool) (watch.Interface, error) {
	if err := c.asked(ctx, "watch", of); err != nil {
		return nil, err
	}
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil) // client-go lists first, then
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	since, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest("a watch begins at a resource version")
	}
	if since < c.oldest {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", since, c.oldest))
	}
	w := &watcher{c: c, has: has, out: make(chan watch.Event, maxPending)}
	c.watchers[w] = true
	for _, e := range c.history[min(since-c.oldest, len(c.history)):] {
		w.send(e)
	}
	return w, nil
}

// Interrupt ends all watches. With expire it also forgets the past, so that no watch can resume.
func (c *Cluster) Interrupt(expire bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if expire {
		c.revision++
		c.oldest, c.history = c.revision, nil
	}
	for w := range c.watchers {
		w.end()
	}
}

// maxPending is how many events a watch may be behind. Like a real API server, the cluster ends a watch that is slower.
const maxPending = 10_000

// watcher is a watch. Its methods but ResultChan and Stop are called while the cluster is locked.
type watcher struct {
	c   *Cluster
	has func(runtime.Object) bool
	out chan watch.Event
}

func (w *watcher) send(e watch.Event) {
	if !w.has(e.Object) || !w.c.watchers[w] {
		return
	}
	select {
	case w.out <- watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}:
	default:
		w.end()
	}
}

func (w *watcher) end() {
	if w.c.watchers[w] {
		delete(w.c.watchers, w)
		close(w.out)
	}
}

// ResultChan implements [watch.Interface].
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop implements [watch.Interface].
func (w *watcher) Stop() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.end()
}
