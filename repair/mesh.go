package repair

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/selection"
)

// mesh returns the mesh that has a pod, whose check is then looked at. Where the pod's namespace decides, and has not been read, it is
// the first that has the pod or may have it; else the first of all.
func (c *Controller) mesh(pod *corev1.Pod) *dialect.Dialect {
	var first, maybe, has *dialect.Dialect
	for d := range c.opts.Meshes.All() {
		first = cmp.Or(first, &d)
		switch alone := d.Decide(pod, nil); {
		case alone.Undecided && maybe == nil:
			maybe = &d
		case alone.Selected && !alone.Undecided && has == nil:
			has = &d
		}
	}
	if maybe != nil {
		if chosen := c.opts.Meshes.Lookup(c.tracks.get(pod.UID).chosen); chosen != nil {
			return chosen
		}
	}
	return cmp.Or(has, maybe, first)
}

// criteria returns those of the pod's [Controller.mesh].
func (c *Controller) criteria(pod *corev1.Pod) Criteria {
	return c.opts.Criteria[c.mesh(pod).Name]
}

func (c *Controller) anyMesh(is func(dialect.Dialect) bool) bool {
	for d := range c.opts.Meshes.All() {
		if is(d) {
			return true
		}
	}
	return false
}

// ours reports whether a mesh whose pods are repaired has the pod, or may have it by its namespace.
func (c *Controller) ours(pod *corev1.Pod) bool {
	return c.anyMesh(func(d dialect.Dialect) bool {
		alone := d.Decide(pod, nil)
		return d.NodeProxy == nil && (alone.Selected || alone.Undecided)
	})
}

// undecided reports whether the pod alone does not tell which mesh has it, or whether one has: the labels of its namespace decide,
// or a mesh's Decline panics.
func (c *Controller) undecided(pod *corev1.Pod) bool {
	return c.anyMesh(func(d dialect.Dialect) bool { return d.Decide(pod, nil).Undecided })
}

// byNamespace reports whether a decision made without the namespace needs it.
func byNamespace(alone selection.Decision) bool { return alone.Undecided && alone.Err == nil }

// choose returns the mesh that has a pod, as the plugin decides. It reads the namespace only if that decides too. An error says
// that this cannot be told.
func (c *Controller) choose(ctx context.Context, pod *corev1.Pod) (dialect.Choice, error) {
	var namespace *corev1.Namespace
	if c.anyMesh(func(d dialect.Dialect) bool { return byNamespace(d.Decide(pod, nil)) }) {
		var err error
		if namespace, err = c.namespace(ctx, pod); err != nil {
			return dialect.Choice{}, err
		}
	}
	return c.opts.Meshes.Choose(pod, namespace)
}

// learn finds out which mesh has a pod whose namespace decides about that: one whose check is then looked at, or none, so that the
// plugin left the pod alone on purpose. An error says that it cannot be told; nothing is to be done to the pod then.
func (c *Controller) learn(ctx context.Context, pod *corev1.Pod) error {
	if c.criteria(pod).Policy == nil || !c.undecided(pod) {
		return nil
	}
	choice, err := c.choose(ctx, pod)
	if err != nil {
		return err
	}
	c.tracks.change(pod.UID, func(t *track) {
		t.chosen, t.passed = "", choice.Decision.Detail
		if choice.Dialect != nil {
			t.chosen, t.passed = choice.Dialect.Name, ""
		}
		if choice.Dialect != nil && choice.Dialect.NodeProxy != nil {
			t.passed = "dialect " + t.chosen + " has it, whose proxy is on the node"
		}
	})
	return nil
}

// learnAll does so for all pods now and then, since a namespace's labels change without its pods.
func (c *Controller) learnAll(ctx context.Context) {
	for _, pod := range c.pods() {
		was, chosen := c.passed(pod), c.tracks.get(pod.UID).chosen
		if c.learn(ctx, pod) == nil && (was != "" && c.passed(pod) == "" || chosen != c.tracks.get(pod.UID).chosen) {
			c.enqueue(pod)
		}
	}
}

// passed returns why the plugin leaves a pod alone for what its namespace says, as far as that is known; empty: it does not.
func (c *Controller) passed(pod *corev1.Pod) string {
	if detail := c.tracks.get(pod.UID).passed; detail != "" && c.undecided(pod) {
		return detail
	}
	return ""
}
