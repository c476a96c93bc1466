package nodecontrol

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

// endedAge bounds the time for which the state of a pod is reported whose containers have ended.
const endedAge = 10 * time.Minute

// nothingLeft reports whether a pod that has ended needs no look: it is not known here, and has left nothing. A node may have many thousands of
// such pods, so each is looked at once.
func (c *Controller) nothingLeft(uid types.UID, pod *corev1.Pod) bool {
	if c.entries.Get(uid) != nil || c.told(pod) {
		return false
	}
	left, err := c.left()
	return err == nil && !slices.Contains(left, uid)
}

// told reports whether a pod's annotations say that it is in a mesh.
func (c *Controller) told(pod *corev1.Pod) bool {
	for d := range c.opts.Meshes.All() {
		if _, told := pod.Annotations[d.StatusAnnotation()]; told {
			return true
		}
	}
	return false
}

// forgetEnded drops the entries of pods that ended long ago.
func (c *Controller) forgetEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Drop(func(_ types.UID, e *entry) bool { return e.done && time.Since(e.state.Since) > endedAge })
}

// dropAlias drops what is known of a pod under the UID that it had before the runtime said which static pod it mirrors.
func (c *Controller) dropAlias(uid types.UID) {
	e := c.entries.Get(uid)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := c.drop(e); err != nil {
		c.opts.Log.Warn("cannot close the network namespace of a pod that has another UID", "uid", string(uid), "error", truncate.Finding(err.Error()))
	}
}
