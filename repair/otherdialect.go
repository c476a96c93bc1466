package repair

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/statuscode"
	"github.com/meshcni/meshcni/status"
)

var errNotAsked = errors.New("namespaces are not read")

// findOthers lists the pods of a known mesh that is not configured, which no configured one has, and neither has another program of
// the node. Nothing is done to such a pod: whoever writes a pod decides of which mesh it looks.
func (c *Controller) findOthers(ctx context.Context) {
	others := c.opts.Meshes.Others()
	if others.Len() == 0 {
		return
	}
	var found []status.Pod
	n := map[string]int{}
	for _, pod := range c.pods() {
		mesh := c.other(ctx, pod)
		if mesh != c.tracks.get(pod.UID).other {
			c.tracks.change(pod.UID, func(t *track) { t.other = mesh })
		}
		if mesh == "" {
			continue
		}
		n[mesh]++
		found = append(found, status.Pod{
			ID: status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, Dialect: mesh, State: status.StateOutside, Reason: statuscode.OtherDialect,
			Detail: "the pod is of mesh " + mesh + ", which the node's plugin is not configured for (" + c.opts.Meshes.String() + "): its traffic bypasses the mesh; " +
				"add " + mesh + " to the plugin's dialect, then delete the pod",
		})
	}
	for d := range others.All() {
		c.metrics.otherDialect.WithLabelValues(d.Name).Set(float64(n[d.Name]))
	}
	c.mu.Lock()
	c.others = found
	c.mu.Unlock()
}

// other returns the name of the mesh that a pod with a network is of, if the node is not configured for it; else "". A mesh that
// selects the pod only by its namespace's labels does not count: only a program that serves the mesh reads those.
func (c *Controller) other(ctx context.Context, pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || len(pod.Status.PodIPs) == 0 || dialect.Whole(pod) != nil ||
		c.opts.isAgent(pod) {
		return ""
	}
	others := slices.Collect(c.opts.Meshes.Others().All())
	at := slices.IndexFunc(others, func(d dialect.Dialect) bool {
		alone := d.Decide(pod, nil)
		return alone.Selected && alone.Err == nil && (c.opts.Elsewhere == nil || !c.opts.Elsewhere(d.Name))
	})
	if at < 0 {
		return ""
	}
	mesh := others[at]
	var namespace *corev1.Namespace
	if mesh.Decide(pod, nil).Undecided || c.undecided(pod) {
		var err error
		if namespace, err = c.namespaceOfOther(ctx, pod); err != nil || !mesh.Decide(pod, namespace).Selected {
			return "" // it is excluded, or that cannot be told
		}
	}
	if chosen, err := c.opts.Meshes.Choose(pod, namespace); err != nil || chosen.Dialect != nil {
		return ""
	}
	if traced(c.inventory.Recent(nil), pod, nil).State == status.StateCaptured {
		return "" // the plugin's record says so: it has been configured otherwise since
	}
	return mesh.Name
}
