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

// pod returns the one of them that the runtime knows by the UID, or nil.
func (c *Controller) pod(uid types.UID) *corev1.Pod {
	if pod := c.source.ByUID(uid); pod != nil && c.selects(pod) {
		return pod
	}
	return nil
}

// changed deals with a pod that is new or changed, and resets the waits of one that is gone.
func (c *Controller) changed(uid types.UID, wait time.Duration) {
	if pod := c.pod(uid); pod != nil {
		c.see(pod)
		c.queue.AddAfter(c.source.RuntimeUID(pod), wait)
	} else {
		c.queue.Forget(uid)
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
	}
	c.metrics.watch.WithLabelValues(kind).Inc()
}
