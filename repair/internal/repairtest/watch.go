package repairtest

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Pods implements [kube.Cluster].
func (c *Cluster) Pods(node, labelSelector string) cache.ListerWatcher {
	selector, err := labels.Parse(labelSelector)
	return nodePods{c, node, selector, err}
}

type nodePods struct {
	c        *Cluster
	node     string
	selector labels.Selector
	err      error // of the selector
}

// has reports whether a pod is among them. A pod stays so as long as it exists.
func (n nodePods) has(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == n.node && n.selector.Matches(labels.Set(pod.Labels))
}

// IsWatchListSemanticsUnSupported makes client-go list first, then watch.
func (nodePods) IsWatchListSemanticsUnSupported() bool { return true }

// List implements [cache.Lister].
func (n nodePods) List(metav1.ListOptions) (runtime.Object, error) {
	if err := n.c.asked(context.Background(), "list", types.NamespacedName{}); err != nil {
		return nil, err
	}
	if n.err != nil {
		return nil, apierrors.NewBadRequest(n.err.Error())
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(n.c.revision)}}
	for _, pod := range n.c.pods {
		if n.has(pod) {
			list.Items = append(list.Items, *pod.DeepCopy())
		}
	}
	return list, nil
}

// Watch implements [cache.Watcher].
func (n nodePods) Watch(o metav1.ListOptions) (watch.Interface, error) {
	if err := n.c.asked(context.Background(), "watch", types.NamespacedName{}); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	since, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest("a watch begins at a resource version")
	}
	if since < n.c.oldest {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", since, n.c.oldest))
	}
	w := &watcher{pods: n, out: make(chan watch.Event, maxPending)}
	n.c.watchers[w] = true
	for _, e := range n.c.history[min(since-n.c.oldest, len(n.c.history)):] {
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
	pods nodePods
	out  chan watch.Event
}

func (w *watcher) send(e watch.Event) {
	if pod, ok := e.Object.(*corev1.Pod); !ok || !w.pods.has(pod) || !w.pods.c.watchers[w] {
		return
	}
	select {
	case w.out <- watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}:
	default:
		w.end()
	}
}

func (w *watcher) end() {
	if w.pods.c.watchers[w] {
		delete(w.pods.c.watchers, w)
		close(w.out)
	}
}

// ResultChan implements [watch.Interface].
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop implements [watch.Interface].
func (w *watcher) Stop() {
	w.pods.c.mu.Lock()
	defer w.pods.c.mu.Unlock()
	w.end()
}
