package dialect

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// What a mesh reads of a pod's namespace is derived here, from all of the [Dialect], and nowhere else.

// ReadsNamespace reports whether the pod's Namespace is needed. It is not if the pod alone rules itself out, or if it could not
// help. With nil it reports whether that of any pod is: by the Policy, by a schema whose settings are inherited from it, or by a
// Build that says so ([Dialect.NeedsNamespace]). Whoever captures pods then has to be able to read namespaces.
func (d Dialect) ReadsNamespace(pod *corev1.Pod) bool {
	if pod == nil {
		return d.Policy.ReadsNamespace() || d.inherits()
	}
	alone := d.Policy.Decide(pod, nil)
	return alone.Err == nil && (alone.Undecided || alone.Selected && d.inherits())
}

// inherits reports whether Build reads the namespace.
func (d Dialect) inherits() bool {
	return d.NeedsNamespace || slices.ContainsFunc(d.look().schemas, redirect.Schema.ReadsNamespace)
}

// look is the result of a trial call of a Build function.
type look struct{ schemas []redirect.Schema }

// look calls Build once, with a pod without settings. A schema that Build reads of certain pods only is not seen; such a pod is
// refused if its namespace was needed.
func (d Dialect) look() (l look) {
	if d.Build == nil {
		return l
	}
	in := d.plain()
	in.look = &l
	if _, err := d.try(in); err != nil && len(l.schemas) == 0 {
		_, _ = d.try(d.demanded(in))
	}
	return l
}

// errPanic is a Build that panics.
var errPanic = errors.New("its Build panics")

// try calls Build.
func (d Dialect) try(in Input) (r Reading, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %s", errPanic, truncate.Text(fmt.Sprint(v), maxPanic))
		}
	}()
	return d.Build(in)
}

const maxPanic = 200

// demanded is an Input whose pod has the annotations that the Policy demands.
func (d Dialect) demanded(in Input) Input {
	in.Pod = in.Pod.DeepCopy()
	keys := append(slices.Clone(d.Policy.Traces), d.Policy.StatusAnnotation)
	for _, key := range keys {
		in.Pod.Annotations[key] = "x"
	}
	for _, r := range d.Policy.Required {
		for _, key := range r.Keys {
			in.Pod.Annotations[key] = append(slices.Clone(r.Values), "x")[0]
		}
	}
	delete(in.Pod.Annotations, "")
	in.Proxy = d.Policy.Proxy(in.Pod)
	if len(d.Policy.InjectOn) > 0 {
		in.Pod.Annotations[d.Policy.InjectKey] = d.Policy.InjectOn[0]
	} else if d.Policy.InjectKey != "" {
		in.Pod.Annotations[d.Policy.InjectKey] = "true"
	}
	return in
}

// plain is Build's input for a pod without settings.
func (d Dialect) plain() Input {
	in := Input{Pod: &corev1.Pod{}, Namespace: &corev1.Namespace{}}
	in.Pod.Annotations, in.Pod.Labels = map[string]string{}, map[string]string{}
	if names := d.Policy.ProxyContainers; len(names) > 0 {
		in.Pod.Spec.Containers = []corev1.Container{{Name: names[0]}}
		in.Proxy = &in.Pod.Spec.Containers[0]
	}
	return in
}

// unknown refuses a pod that cannot be decided about: its namespace is needed and not known, the Policy cannot decide, or there is no pod.
func (d *Dialect) unknown(pod *corev1.Pod, alone selection.Decision) error {
	if errors.Is(alone.Err, selection.ErrNoPod) {
		return alone.Err
	}
	if alone.Err != nil {
		return d.refused(pod, d.invalid(alone.Err))
	}
	what := "what settings of " + d.Name + " it inherits"
	switch by := d.Policy.ExcludedNamespaceLabels; {
	case alone.Undecided && alone.Selected:
		what = "whether " + truncate.Quote(fmt.Sprint(by)) + " excludes it"
	case alone.Undecided:
		what = "whether " + d.Name + " selects it"
	}
	return fmt.Errorf("pod %s/%s: %w, so it cannot be told %s", pod.Namespace, pod.Name, redirect.ErrNamespaceUnknown, what)
}

// maybe is the decision about a pod that is refused because it cannot be decided about: nobody may take it for outside.
func maybe(alone selection.Decision) selection.Decision {
	if !alone.Selected {
		alone.Selected, alone.Reason, alone.Detail = true, status.CodeSelected, "its namespace may enable it"
	}
	alone.Undecided = true
	return alone
}
