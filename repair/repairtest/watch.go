package repairtest

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/meshcni/meshcni/repair"
)

// Pods lists and watches the pods of one node.
func (c *Cluster) Pods(node string) cache.ListerWatcher { return nodePods{c, node} }

type nodePods struct {
	c    *Cluster
	node string
}

// IsWatchListSemanticsUnSupported tells client-go to list first, then watch.
func (nodePods) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (n nodePods) List(metav1.ListOptions) (runtime.Object, error) {
	if err := n.c.asked(context.Background(), "list", repair.Ref{}); err != nil {
		return nil, err
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(n.c.revision)}}
	for _, pod := range n.c.pods {
		if pod.Spec.NodeName == n.node {
			list.Items = append(list.Items, *pod.DeepCopy())
		}
	}
	return list, nil
}

// Watch implements cache.Watcher.
func (n nodePods) Watch(o metav1.ListOptions) (watch.Interface, error) {
	if err := n.c.asked(context.Background(), "watch", repair.Ref{}); err != nil {
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
	w := &watcher{node: n.node, out: make(chan watch.Event), more: make(chan struct{}, 1), stop: make(chan struct{}), c: n.c}
	n.c.watchers[w] = true
	for _, e := range n.c.history {
		if e.revision > since {
			w.send(e)
		}
	}
	go w.run()
	return w, nil
}

// Interrupt ends all watches, and with expire makes the past unknown, so that
// none can go on from where it was.
func (c *Cluster) Interrupt(expire bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if expire {
		c.revision++
		c.oldest, c.history = c.revision, nil
	}
	for w := range c.watchers {
		delete(c.watchers, w)
		close(w.stop)
	}
}

// watcher hands out events in order, however slowly they are taken.
type watcher struct {
	node    string
	c       *Cluster
	out     chan watch.Event
	more    chan struct{}
	stop    chan struct{}
	pending []watch.Event // guarded by c.mu
}

// send is called with c.mu held. Pods do not move between nodes.
func (w *watcher) send(e change) {
	if pod, ok := e.event.Object.(*corev1.Pod); !ok || pod.Spec.NodeName != w.node {
		return
	}
	w.pending = append(w.pending, watch.Event{Type: e.event.Type, Object: e.event.Object.DeepCopyObject()})
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) run() {
	defer close(w.out)
	for {
		w.c.mu.Lock()
		batch := w.pending
		w.pending = nil
		w.c.mu.Unlock()
		for _, e := range batch {
			select {
			case w.out <- e:
			case <-w.stop:
				return
			}
		}
		select {
		case <-w.more:
		case <-w.stop:
			return
		}
	}
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *watcher) Stop() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.watchers[w] {
		delete(w.c.watchers, w)
		close(w.stop)
	}
}
