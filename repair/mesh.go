package repair

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/selection"
)

// judging is a [Pods] that keeps what the node's meshes say of each pod, for all of the agent.
type judging interface {
	Judgement(pod *corev1.Pod) *judge.Judgement
}

// judged returns what the meshes say of a pod, as far as that is known without a request.
func (c *Controller) judged(pod *corev1.Pod) *judge.Judgement {
	if c.judging != nil {
		return c.judging.Judgement(pod)
	}
	j := c.tracks.get(pod.UID).judged
	switch {
	case j != nil && j.Of(pod, j.Namespace):
		return j
	case j != nil && j.Namespace != nil:
		j = c.judge.Pod(pod, j.Namespace, nil)
		c.tracks.change(pod.UID, func(t *track) { t.judged = j })
		return j
	}
	j = c.judge.Pod(pod, nil, nil)
	reads := errors.Is(j.Err, dialect.ErrNamespaceUnknown) || j.Selected() && c.judge.NeedsNamespace(pod)
	reads = c.opts.uses().Namespaces && (reads && j.May(sidecars) != nil || c.opts.Detect != nil && j.OthersUndecided())
	c.tracks.change(pod.UID, func(t *track) { t.judged, t.reads = j, reads })
	return j
}

// learn finds out which mesh has a pod, as the plugin does. Where nobody else watches the namespaces, it reads the pod's if that decides, or
// has settings that the pod inherits. An error says that it cannot be told; nothing is to be done to the pod then.
func (c *Controller) learn(ctx context.Context, pod *corev1.Pod) error {
	j := c.judged(pod)
	if c.judging == nil && c.tracks.get(pod.UID).reads {
		namespace, err := c.namespace(ctx, pod.Namespace)
		if err != nil || !j.Of(pod, namespace) {
			j = c.judge.Pod(pod, namespace, err)
			c.tracks.change(pod.UID, func(t *track) { t.judged = j })
		}
	}
	if c.criteria(pod).Policy == nil {
		return nil
	}
	return j.Err
}

// learnAll does so for all pods now and then, where nobody else tells that a namespace's labels have changed.
func (c *Controller) learnAll(ctx context.Context) {
	if c.judging != nil {
		return
	}
	for _, pod := range c.pods() {
		was := c.judged(pod)
		if c.learn(ctx, pod) == nil && nameOf(was.Mesh) != nameOf(c.judged(pod).Mesh) {
			c.enqueue(pod)
		}
	}
}

func nameOf(mesh *dialect.Dialect) string {
	if mesh == nil {
		return ""
	}
	return mesh.Name
}

// sidecars are the meshes whose pods are repaired.
func sidecars(d dialect.Dialect) bool { return d.NodeProxy == nil }

// mesh returns the mesh that has a pod, or may have it, whose check is then looked at; else the first of all.
func (c *Controller) mesh(j *judge.Judgement) *dialect.Dialect {
	if d := j.May(func(dialect.Dialect) bool { return true }); d != nil {
		return d
	}
	return c.opts.Meshes.Lookup(c.opts.Meshes.Names()[0])
}

// criteria returns those of the pod's mesh.
func (c *Controller) criteria(pod *corev1.Pod) Criteria {
	return c.opts.Criteria[c.mesh(c.judged(pod)).Name]
}

// decision is the judgement for findings: a pod of the node's proxy is left to the agent that hands it to that.
func decision(j *judge.Judgement) selection.Decision {
	d := j.Decision
	d.Selected, d.Undecided = j.Mesh != nil, j.Undecided()
	if j.Selected() && !sidecars(*j.Mesh) {
		d.Selected, d.Detail = false, "dialect "+j.Mesh.Name+" has it, whose proxy is on the node"
	}
	return d
}
