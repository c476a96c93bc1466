package repair

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/selection"
)

// judged returns what the meshes say of a pod, as far as that is known.
func (c *Controller) judged(pod *corev1.Pod) *judge.Judgement { return c.source.Judgement(pod) }

// undecided returns why it cannot be told which mesh has a pod, or nil; nothing is to be done to the pod then.
func (c *Controller) undecided(pod *corev1.Pod) error {
	if c.criteria(pod).Policy == nil {
		return nil
	}
	return c.judged(pod).Err
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
