package repair

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// findOthers lists the pods of a known mesh that is not configured, which no configured one has, and neither has another program of
// the node. Nothing is done to such a pod: whoever writes a pod decides of which mesh it looks.
func (c *Controller) findOthers() {
	others := c.opts.Meshes.Others()
	if others.Len() == 0 {
		return
	}
	n := map[string]int{}
	for _, pod := range c.pods() {
		mesh := c.other(pod)
		if mesh != c.track(pod).other {
			c.note(pod, func(t *track) { t.other = mesh })
		}
		n[mesh]++
	}
	for d := range others.All() {
		c.metrics.otherDialect.WithLabelValues(d.Name).Set(float64(n[d.Name]))
	}
}

// ofOther says that a pod is of such a mesh.
func (c *Controller) ofOther(mesh string) status.Pod {
	return status.Pod{Dialect: mesh, State: status.StateOutside, Reason: statuscode.OtherDialect,
		Detail: "the pod is of mesh " + mesh + ", which the node's plugin is not configured for (" + c.opts.Meshes.String() + "): its traffic bypasses the mesh; " +
			"add " + mesh + " to the plugin's dialect, then delete the pod"}
}

// other returns the name of the mesh that a pod with a network is of, if the node is not configured for it; else "".
func (c *Controller) other(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || len(pod.Status.PodIPs) == 0 || c.opts.isAgent(pod) {
		return ""
	}
	others := c.judged(pod).Others()
	i := slices.IndexFunc(others, func(mesh string) bool { return c.opts.Elsewhere == nil || !c.opts.Elsewhere(mesh) })
	if i < 0 {
		return ""
	}
	if traced(c.inventory.Recent(nil), pod, nil).State == status.StateCaptured {
		return "" // the plugin's record says so: it has been configured otherwise since
	}
	return others[i]
}
