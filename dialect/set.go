package dialect

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/warning"
)

// Set is a node's meshes as its operator has configured them, in the order in which they are asked about a pod. The first that
// selects the pod has it, and also refuses it if its settings are wrong. A Set of one mesh does what that mesh does alone.
//
// A Set never changes, and is safe for concurrent use. Every method is pure. The zero Set has no mesh, and refuses every pod.
// Make one with [Configure] or [SetOf].
type Set struct {
	meshes  []Dialect // with the exclusions
	known   []Dialect // all that the program has, without them
	options Options
	unknown []string // keys of the meshes' settings

	excludedNames  []string
	excludedLabels labels.Selector // nil: none
}

// Configure returns the meshes of a plugin's configuration among those that a program knows, in the order of c.Dialects; without
// any, the first that is known. Programs with flags fill in a Config too. Every known mesh gets the settings that the configuration
// has under its name, in c.Meshes.
//
// The error joins a [*KeyError] for each wrong key, which [ByFlag] names as flags. The Set has what is right. The known dialects
// must be valid: [Validate] tells, which takes too long for each pod.
func Configure(known []Dialect, c netconf.Config) (Set, error) {
	s := SetOf(known...).WithOptions(Options{
		UncapturedFamily: c.UncapturedFamily, RefuseProxyUID: c.RefuseProxyUID, RefuseNetRaw: c.RefuseNetRaw,
		AllowSandboxed: c.AllowSandboxed, SandboxedClasses: c.SandboxedClasses,
	})
	var errs []error
	wrong := func(key string, err error) {
		if err != nil {
			errs = append(errs, &KeyError{key, err})
		}
	}
	for i, d := range s.known {
		settings := c.Meshes[d.Name]
		if d.Configure == nil || settings == nil {
			continue
		}
		configured, unknown, err := d.Configure(d, settings)
		s.unknown = append(s.unknown, unknown...)
		if err != nil {
			errs = append(errs, err)
		} else {
			s.known[i] = configured
		}
	}
	for _, name := range c.Kubernetes.ExcludeNamespaces {
		if name = strings.TrimSpace(name); name != "" {
			s.excludedNames = append(s.excludedNames, name)
		}
	}
	var err error
	s.excludedLabels, err = selection.ParseSelector(c.Kubernetes.ExcludeNamespaceSelector)
	wrong("kubernetes.exclude_namespace_selector", err)
	s.meshes, err = s.find(c.Dialects)
	wrong("dialect", err)
	return s, errors.Join(errs...)
}

// SetOf returns a Set of meshes as they are, each of which is asked.
func SetOf(meshes ...Dialect) Set {
	all := slices.Clone(meshes)
	return Set{meshes: all, known: slices.Clone(all)}
}

// WithOptions returns the Set with other options of a pod's plan.
func (s Set) WithOptions(o Options) Set {
	s.options = o
	return s
}

// KeyError holds the fault of one key of a configuration. Get it with errors.As(err, &keyError).
type KeyError struct {
	// Key is that of the plugin's entry, such as "kubernetes.exclude_namespace_selector".
	Key string
	Err error
}

// Flag is the key as the flag of a program, such as "exclude-namespace-selector".
func (e *KeyError) Flag() string {
	return strings.NewReplacer("_", "-", ".", "-").Replace(strings.TrimPrefix(e.Key, "kubernetes."))
}

// Error returns "KEY: " and the fault.
func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap returns the fault.
func (e *KeyError) Unwrap() error { return e.Err }

// ByFlag returns the error of [Configure] with what named makes of each wrong key.
func ByFlag(err error, named func(*KeyError) error) error {
	switch err := err.(type) { //nolint:errorlint // those of Configure, which nothing wraps
	case *KeyError:
		return named(err)
	case interface{ Unwrap() []error }:
		errs := slices.Clone(err.Unwrap())
		for i, e := range errs {
			errs[i] = ByFlag(e, named)
		}
		return errors.Join(errs...)
	}
	return err
}

// find returns the known meshes of the names, which exclude the namespaces. The error has a line for each name that is unknown or
// repeated.
func (s Set) find(names []string) ([]Dialect, error) {
	if len(names) == 0 && len(s.known) > 0 {
		names = []string{s.known[0].Name}
	}
	var found []Dialect
	var errs []error
	for i, name := range names {
		at := slices.IndexFunc(s.known, func(d Dialect) bool { return d.Name == name })
		switch {
		case slices.Contains(names[:i], name):
			errs = append(errs, fmt.Errorf("dialect %s is named twice", truncate.Quote(name)))
		case at < 0:
			errs = append(errs, fmt.Errorf("unknown dialect %s: known is %s", truncate.Quote(name), strings.Join(namesOf(s.known), ", ")))
		default:
			found = append(found, s.excluding(s.known[at]))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return found, nil
}

// excluding adds the excluded namespaces to those that a mesh excludes itself.
func (s Set) excluding(d Dialect) Dialect {
	d.Policy.ExcludedNamespaces = slices.Concat(d.Policy.ExcludedNamespaces, s.excludedNames)
	if s.excludedLabels != nil {
		d.Policy.ExcludedNamespaceLabels = append(slices.Clone(d.Policy.ExcludedNamespaceLabels), s.excludedLabels)
	}
	return d
}

// Others returns the known meshes that are not configured, with the same exclusions and options: a pod that one of them selects is
// captured by nobody.
func (s Set) Others() Set {
	others := s
	others.meshes = nil
	for _, d := range s.known {
		if s.Lookup(d.Name) == nil {
			others.meshes = append(others.meshes, s.excluding(d))
		}
	}
	return others
}

// Everywhere returns the Set without the configuration's exclusions of namespaces.
func (s Set) Everywhere() Set {
	s.excludedNames, s.excludedLabels = nil, nil
	s.meshes, _ = s.find(s.Names()) // they are known
	return s
}

// Known returns the meshes that the program knows, with the settings that the configuration has for them, and without its
// exclusions of namespaces.
func (s Set) Known() []Dialect { return slices.Clone(s.known) }

// Unknown returns the keys of a configuration that mean nothing to the plugin, of those that [netconf.Parse] does not know. It leaves out
// the known meshes' settings, and adds what these do not know.
func (s Set) Unknown(keys []string) []string {
	left := slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		return slices.ContainsFunc(s.known, func(d Dialect) bool { return d.Name == key && d.Configure != nil })
	})
	return slices.Sorted(slices.Values(append(left, s.unknown...)))
}

// All returns copies of the meshes, in order.
func (s Set) All() iter.Seq[Dialect] { return slices.Values(s.meshes) }

// Lookup returns a copy of the mesh with the name, which is that of a [Plan]; nil: there is none.
func (s Set) Lookup(name string) *Dialect {
	if i := slices.IndexFunc(s.meshes, func(d Dialect) bool { return d.Name == name }); i >= 0 {
		return s.copied(i)
	}
	return nil
}

// copied returns a copy of a mesh, which the caller may change.
func (s Set) copied(i int) *Dialect {
	d := s.meshes[i]
	return &d
}

// Len returns how many meshes there are.
func (s Set) Len() int { return len(s.meshes) }

// Names lists the meshes' names, in order.
func (s Set) Names() []string { return namesOf(s.meshes) }

func namesOf(dialects []Dialect) []string {
	names := make([]string, len(dialects))
	for i := range dialects {
		names[i] = dialects[i].Name
	}
	return names
}

// String returns the names as configuration and flags have them, such as "ambient,istio".
func (s Set) String() string { return strings.Join(s.Names(), ",") }

// Options are those of a pod's plan.
func (s Set) Options() Options { return s.options }

// Answer is one mesh's decision about a pod, among those of a [Set].
type Answer struct {
	Dialect string `json:"dialect"`
	selection.Decision
}

// Choice is the mesh of a [Set] that has a pod.
type Choice struct {
	// Dialect is a copy of the mesh that has the pod; nil: none selects it.
	Dialect *Dialect
	// Decision is that mesh's. If none selects the pod, it has the reason of the first and the details of all.
	Decision selection.Decision
	// Answers are the meshes' decisions, in order. nil: there is only one.
	Answers []Answer
	// Contested names the further meshes that would select the pod.
	Contested []string

	options Options
	err     error // that of Choose
}

// WarningContested: more than one mesh would select the pod. It joins [warning.Codes], and is stable too.
const WarningContested warning.Code = "contested"

var errNoMesh = errors.New("no mesh is configured")

// Plan is [Dialect.Plan] of the mesh that has the pod, with the Set's options. The Plan also says what the others answer, and has a
// warning of the code [WarningContested] if more than one would select the pod.
//
// It refuses a pod without its Namespace if the mesh that has the pod, or one before it, would have to know that, as [Dialect.Plan]
// does. Dialect then names that mesh.
func (s Set) Plan(subject Subject) (Plan, error) {
	if len(s.meshes) == 1 {
		return s.meshes[0].Plan(subject, s.options)
	}
	c, _ := s.Choose(subject.Pod, subject.Namespace) // the plan's error has it
	return c.Plan(subject)
}

// Plan returns the plan that [Set.Plan] makes of the choice. No mesh is asked again about the subject's pod.
func (c Choice) Plan(subject Subject) (Plan, error) {
	if c.Dialect == nil || c.err != nil {
		p := Plan{Decision: c.Decision, Answers: c.Answers}
		if c.Dialect != nil {
			p.Dialect = c.Dialect.Name
		}
		return p, c.err
	}
	p, err := c.Dialect.plan(subject, c.options, c.Decision)
	p.Answers = c.Answers
	if len(c.Contested) > 0 {
		p.Warnings = append(slices.Clone(p.Warnings), warning.New(WarningContested, "",
			"%s would select the pod too; %s has it, which is asked first", strings.Join(c.Contested, " and "), p.Dialect))
	}
	return p, err
}

// Choose asks all meshes about the pod. Without the Namespace, errors.Is(err, redirect.ErrNamespaceUnknown) if it decides which mesh
// has the pod; the Choice is then the mesh that may have it, with Decision.Undecided. An [*InvalidError] says the same of a mesh whose
// Policy.Decline panics.
func (s Set) Choose(pod *corev1.Pod, namespace *corev1.Namespace) (Choice, error) {
	c := Choice{options: s.options}
	if len(s.meshes) == 0 {
		c.err = errNoMesh
		return c, c.err
	}
	answers := make([]Answer, 0, len(s.meshes))
	for i := range s.meshes {
		d := s.meshes[i].Decide(pod, namespace)
		answers = append(answers, Answer{s.meshes[i].Name, d})
		switch {
		case d.Selected && c.Dialect != nil:
			if c.err == nil && d.Err == nil {
				c.Contested = append(c.Contested, s.meshes[i].Name)
			}
		case c.Dialect != nil:
		case d.Undecided:
			c.err = s.meshes[i].unknown(pod, d)
			c.Dialect, c.Decision = s.copied(i), maybe(d)
		case d.Selected:
			c.Dialect, c.Decision = s.copied(i), d
		}
	}
	if len(answers) > 1 {
		c.Answers = answers
	}
	if c.Dialect == nil {
		c.Decision = nobody(answers)
	}
	return c, c.err
}

// nobody is the decision about a pod that none of the meshes selects.
func nobody(answers []Answer) selection.Decision {
	if len(answers) == 1 {
		return answers[0].Decision
	}
	d := selection.Decision{Reason: answers[0].Reason}
	details := make([]string, len(answers))
	for i, a := range answers {
		details[i] = a.Dialect + ": " + a.Detail
		d.Warnings = append(d.Warnings, a.Warnings...)
	}
	d.Detail = strings.Join(details, "; ")
	return d
}

// allOut reports whether every mesh is out, and the decision that says so.
func (s Set) allOut(out func(Dialect) (selection.Decision, bool)) (selection.Decision, bool) {
	answers := make([]Answer, 0, len(s.meshes))
	for _, d := range s.meshes {
		decision, is := out(d)
		if !is {
			return selection.Decision{}, false
		}
		answers = append(answers, Answer{d.Name, decision})
	}
	if len(answers) == 0 {
		return selection.Decision{}, false
	}
	return nobody(answers), true
}

// RuleOut decides by a pod's annotations alone: they must rule it out for every mesh. See [selection.Policy.RuleOut].
func (s Set) RuleOut(annotations map[string]string) (selection.Decision, bool) {
	return s.allOut(func(d Dialect) (selection.Decision, bool) { return d.Policy.RuleOut(annotations) })
}

// PresumeOut is for a pod that cannot be read: each mesh must rule it out by its annotations, or presume that it is
// outside. See [selection.Policy.PresumeOut].
func (s Set) PresumeOut(annotations map[string]string) (selection.Decision, bool) {
	if annotations == nil {
		return selection.Decision{}, false
	}
	return s.allOut(func(d Dialect) (selection.Decision, bool) {
		if decision, out := d.Policy.RuleOut(annotations); out {
			return decision, true
		}
		return d.Policy.PresumeOut(annotations)
	})
}

// ExcludesNamespace reports whether every mesh excludes the namespace by its name.
func (s Set) ExcludesNamespace(name string) bool {
	return len(s.meshes) > 0 && !slices.ContainsFunc(s.meshes, func(d Dialect) bool { return !d.Policy.ExcludesNamespace(name) })
}

// Excludes reports whether the configuration excludes the namespace, by its name or its labels.
func (s Set) Excludes(namespace *corev1.Namespace) bool {
	return slices.Contains(s.excludedNames, namespace.Name) || s.excludedLabels != nil && s.excludedLabels.Matches(labels.Set(namespace.Labels))
}

// ReadsNamespace reports whether any mesh needs the pod's Namespace, or without a pod that of any pod; see [Dialect.ReadsNamespace].
// A mesh that comes after the one that has the pod needs it too, to say whether it would select the pod as well. Whoever captures
// pods then needs the right to get namespaces.
func (s Set) ReadsNamespace(pod *corev1.Pod) bool {
	return slices.ContainsFunc(s.meshes, func(d Dialect) bool { return d.ReadsNamespace(pod) })
}

// ForSandbox returns the meshes that CNI_ARGS configure, by key, as [Dialect.ForSandbox] does.
func (s Set) ForSandbox(args map[string]string) Set {
	sandboxed := Set{options: s.options}
	for _, d := range s.meshes {
		if mesh, ok := d.ForSandbox(args); ok {
			sandboxed.meshes = append(sandboxed.meshes, mesh)
		}
	}
	sandboxed.known = sandboxed.meshes
	return sandboxed
}
