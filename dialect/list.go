package dialect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// List is the meshes of a node, in the order in which they are asked about a pod. The first that selects the pod has it,
// and also refuses it if its settings are wrong. A List of one mesh does what that mesh does alone. Every method is pure.
type List []Dialect

// Answer is one mesh's decision about a pod, among those of a [List].
type Answer struct {
	Dialect string `json:"dialect"`
	selection.Decision
}

// Choice is the mesh of a [List] that has a pod.
type Choice struct {
	// Dialect is a copy of the mesh that has the pod; nil: none selects it.
	Dialect *Dialect
	// Decision is that mesh's. If none selects the pod, it has the reason of the first and the details of all.
	Decision selection.Decision
	// Answers are the meshes' decisions, in order. nil: there is only one.
	Answers []Answer
	// Contested names the further meshes that would select the pod.
	Contested []string
}

// WarningContested: more than one mesh would select the pod. It joins [redirect.WarningCodes], and is stable too.
const WarningContested redirect.WarningCode = "contested"

var errNoMesh = errors.New("no mesh is configured")

// Plan is [Dialect.Plan] of the mesh that has the pod. The Plan also says what the others answer, and has a warning of
// the code [WarningContested] if more than one would select the pod.
//
// It refuses a pod without its Namespace if the mesh that has the pod, or one before it, would have to know that, as [Dialect.Plan]
// does. Dialect then names that mesh.
func (l List) Plan(ctx context.Context, s Subject, o Options) (Plan, error) {
	if len(l) == 1 {
		return l[0].Plan(ctx, s, o)
	}
	c, err := l.Choose(s.Pod, s.Namespace)
	p := Plan{Decision: c.Decision, Answers: c.Answers}
	if c.Dialect == nil || err != nil {
		if c.Dialect != nil {
			p.Dialect = c.Dialect.Name
		}
		return p, err
	}
	p, err = c.Dialect.plan(ctx, s, o, c.Decision)
	p.Answers = c.Answers
	if len(c.Contested) > 0 {
		p.Warnings = append(slices.Clone(p.Warnings), redirect.Warningf(WarningContested, "",
			"%s would select the pod too; %s has it, which is asked first", strings.Join(c.Contested, " and "), p.Dialect))
	}
	return p, err
}

// Choose asks all meshes about the pod. Without the Namespace, errors.Is(err, dialect.ErrNamespaceUnknown) if it decides which mesh
// has the pod; the Choice is then the mesh that may have it, with Decision.Undecided. An [*InvalidError] says the same of a mesh whose
// Policy.Decline panics.
func (l List) Choose(pod *corev1.Pod, namespace *corev1.Namespace) (Choice, error) {
	switch len(l) {
	case 0:
		return Choice{}, errNoMesh
	case 1:
		c := Choice{Decision: l[0].Decide(pod, namespace)}
		if c.Decision.Selected {
			c.Dialect = l.copied(0)
		}
		if c.Decision.Undecided {
			err := l[0].unknown(pod, c.Decision)
			c.Dialect, c.Decision = l.copied(0), maybe(c.Decision)
			return c, err
		}
		return c, nil
	}
	c := Choice{Answers: make([]Answer, 0, len(l))}
	var unknown error
	for i := range l {
		d := l[i].Decide(pod, namespace)
		c.Answers = append(c.Answers, Answer{l[i].Name, d})
		switch {
		case d.Selected && c.Dialect != nil:
			if unknown == nil && d.Err == nil {
				c.Contested = append(c.Contested, l[i].Name)
			}
		case c.Dialect != nil:
		case d.Undecided:
			unknown = l[i].unknown(pod, d)
			c.Dialect, c.Decision = l.copied(i), maybe(d)
		case d.Selected:
			c.Dialect, c.Decision = l.copied(i), d
		}
	}
	if c.Dialect == nil {
		c.Decision = nobody(c.Answers)
	}
	return c, unknown
}

// nobody is the decision about a pod that none of the meshes selects.
func nobody(answers []Answer) selection.Decision {
	d := selection.Decision{Reason: answers[0].Reason}
	details := make([]string, len(answers))
	for i, a := range answers {
		details[i] = a.Dialect + ": " + a.Detail
		d.Warnings = append(d.Warnings, a.Warnings...)
	}
	d.Detail = strings.Join(details, "; ")
	return d
}

// all reports whether every mesh is out, and the decision that says so.
func (l List) all(out func(Dialect) (selection.Decision, bool)) (selection.Decision, bool) {
	answers := make([]Answer, 0, len(l))
	for _, d := range l {
		decision, is := out(d)
		if !is {
			return selection.Decision{}, false
		}
		if len(l) == 1 {
			return decision, true
		}
		answers = append(answers, Answer{d.Name, decision})
	}
	if len(answers) == 0 {
		return selection.Decision{}, false
	}
	return nobody(answers), true
}

// RuleOut decides by a pod's annotations alone: they must rule it out for every mesh. See [selection.Policy.RuleOut].
func (l List) RuleOut(annotations map[string]string) (selection.Decision, bool) {
	return l.all(func(d Dialect) (selection.Decision, bool) { return d.Policy.RuleOut(annotations) })
}

// PresumeOut is for a pod that cannot be read: each mesh must rule it out by its annotations, or presume that it is
// outside. See [selection.Policy.PresumeOut].
func (l List) PresumeOut(annotations map[string]string) (selection.Decision, bool) {
	if annotations == nil {
		return selection.Decision{}, false
	}
	return l.all(func(d Dialect) (selection.Decision, bool) {
		if decision, out := d.Policy.RuleOut(annotations); out {
			return decision, true
		}
		return d.Policy.PresumeOut(annotations)
	})
}

// ExcludesNamespace reports whether every mesh excludes the namespace by its name.
func (l List) ExcludesNamespace(name string) bool {
	return len(l) > 0 && !slices.ContainsFunc(l, func(d Dialect) bool { return !d.Policy.ExcludesNamespace(name) })
}

// MayReadNamespace reports whether any mesh may need a pod's Namespace; see [Dialect.MayReadNamespace].
func (l List) MayReadNamespace() bool { return slices.ContainsFunc(l, Dialect.MayReadNamespace) }

// ReadsNamespace reports whether any mesh needs the pod's Namespace; see [Dialect.ReadsNamespace]. One that comes after
// the mesh that has the pod needs it too, to say whether it would select the pod as well.
func (l List) ReadsNamespace(pod *corev1.Pod) bool {
	return slices.ContainsFunc(l, func(d Dialect) bool { return d.ReadsNamespace(pod) })
}

// Named returns a copy of the mesh with the name, which is that of a [Plan]; nil: there is none.
func (l List) Named(name string) *Dialect {
	if i := slices.IndexFunc(l, func(d Dialect) bool { return d.Name == name }); i >= 0 {
		return l.copied(i)
	}
	return nil
}

// copied returns a copy of a mesh, which the caller may change.
func (l List) copied(i int) *Dialect {
	d := l[i]
	return &d
}

// Names lists the meshes' names, in order.
func (l List) Names() []string {
	names := make([]string, len(l))
	for i := range l {
		names[i] = l[i].Name
	}
	return names
}

// String returns the names as configuration and flags have them, such as "ambient,istio".
func (l List) String() string { return strings.Join(l.Names(), ",") }

// Find returns the meshes of the names, in the order of the names, from those that the List knows. No names mean the
// first that is known. The error has a line for each name that is unknown, empty or repeated.
func (l List) Find(names ...string) (List, error) {
	if len(names) == 0 && len(l) > 0 {
		return l[:1:1], nil
	}
	var found List
	var errs []error
	for i, name := range names {
		switch known := l.Named(name); {
		case slices.Contains(names[:i], name):
			errs = append(errs, fmt.Errorf("dialect %s is named twice", brief.Quote(name)))
		case known == nil:
			errs = append(errs, fmt.Errorf("unknown dialect %s: known is %s", brief.Quote(name), strings.Join(l.Names(), ", ")))
		default:
			found = append(found, *known)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return found, nil
}
