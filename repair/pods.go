package repair

import (
	"errors"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

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
func (c *Controller) pod(at types.NamespacedName) *corev1.Pod {
	c.mu.Lock()
	uid, known := c.uids[at]
	c.mu.Unlock()
	if !known {
		return nil
	}
	if pod := c.source.ByUID(uid); pod != nil && c.selects(pod) {
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
	if pod := c.source.ByUID(uid); pod != nil && c.selects(pod) {
		c.know(uid, pod)
		c.see(pod)
		var wait time.Duration
		c.tracks.change(pod.UID, func(t *track) { wait = t.looks.Take(time.Now()) })
		c.queue.AddAfter(key(pod), wait) // at once, unless it has changed too often of late
		return
	}
	c.mu.Lock()
	at, known := c.keys[uid]
	delete(c.keys, uid)
	if c.uids[at] == uid {
		delete(c.uids, at)
	}
	c.mu.Unlock()
	if known {
		c.queue.Forget(at)
		c.queue.Drop(at)
		c.verifying.Drop(at)
	}
}

// watchFailed is called whenever listing or watching pods, or their namespaces, fails.
func (c *Controller) watchFailed(err error) {
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
