package repair

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/selection"
)

// mesh returns the mesh that has a pod as far as the pod alone says, whose check is then looked at: the first that selects it,
// else the first that its namespace may enable, else the first.
func (c *Controller) mesh(pod *corev1.Pod) *dialect.Dialect {
	l := c.opts.Dialects
	var maybe *dialect.Dialect
	for i := range l {
		switch alone := l[i].Decide(pod, nil); {
		case alone.Selected:
			return &l[i]
		case alone.Reason == selection.NotEnabled && maybe == nil:
			maybe = &l[i]
		}
	}
	return cmp.Or(maybe, &l[0])
}

// criteria returns those of the pod's [Controller.mesh].
func (c *Controller) criteria(pod *corev1.Pod) Criteria {
	return c.opts.Criteria[c.mesh(pod).Name]
}

// ours reports whether a mesh whose pods are repaired has the pod, or may have it by its namespace.
func (c *Controller) ours(pod *corev1.Pod) bool {
	return slices.ContainsFunc(c.opts.Dialects, func(d dialect.Dialect) bool {
		alone := d.Decide(pod, nil)
		return d.NodeProxy == nil && (alone.Selected || alone.Reason == selection.NotEnabled && byNamespace(d))
	})
}

// choose returns the mesh that has a pod, as the plugin decides. It reads the namespace only if that decides too. An error says
// that this cannot be told.
func (c *Controller) choose(ctx context.Context, pod *corev1.Pod) (dialect.Choice, error) {
	namespace, err := c.deciding(ctx, pod)
	if err != nil {
		return dialect.Choice{}, err
	}
	return c.opts.Dialects.Choose(pod, namespace)
}

// deciding returns the pod's namespace if that decides which mesh has the pod, and otherwise nil.
func (c *Controller) deciding(ctx context.Context, pod *corev1.Pod) (*corev1.Namespace, error) {
	decides := slices.ContainsFunc(c.opts.Dialects, func(d dialect.Dialect) bool {
		if !byNamespace(d) {
			return false
		}
		alone := d.Decide(pod, nil)
		return alone.Selected || alone.Reason == selection.NotEnabled
	})
	if !decides {
		return nil, nil
	}
	return c.namespace(ctx, pod)
}

// excluded reports whether a broken pod is not to be acted on for what its namespace says: that excludes it, so that the plugin
// left it alone on purpose, or gives it to another mesh than the one whose check has failed.
func (c *Controller) excluded(ctx context.Context, pod *corev1.Pod, f Finding) (out bool, err error) {
	if c.criteria(pod).Policy == nil {
		return false, nil
	}
	choice, err := c.choose(ctx, pod)
	if err != nil {
		return false, err
	}
	out = choice.Dialect == nil || choice.Dialect.NodeProxy != nil || f.Reason == CheckFailed && choice.Dialect.Name != c.mesh(pod).Name
	c.tracks.change(pod.UID, func(t *track) { t.excluded = out })
	return out, nil
}
