package selection

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// Policy is a mesh's rule for which pods it redirects. An empty field checks nothing, so the zero Policy selects every
// pod that has a network namespace of its own.
type Policy struct {
	// ExcludedNamespaces are namespaces whose pods are left alone.
	ExcludedNamespaces []string
	// ExcludedNamespaceLabels select namespaces whose pods are left alone; one that matches is enough. They are asked last,
	// so that the Namespace object is needed only for pods that nothing else rules out. See [ParseSelector].
	ExcludedNamespaceLabels []labels.Selector
	// InitContainers are the names of containers, init or regular, that set the
	// rules from inside the pod. A pod with one is left alone.
	InitContainers []string
	// PrivilegedInitContainers are the names of init containers that set the rules from inside if they may: if they are
	// privileged or add the capability NET_ADMIN, or ALL. A pod with such a one is left alone. In other pods of the mesh they do
	// something else.
	PrivilegedInitContainers []string
	// ProxyContainers are the names that the proxy container may have, as a regular container or as a native sidecar
	// (an init container that keeps running). A pod without one is left alone.
	// [Policy.MissingProxy] may say otherwise.
	ProxyContainers []string
	// MissingProxy is the fate of a pod that is to have a proxy container and has none, as when the injector was away: InjectKey says on, or
	// one of Selectors matches, and nothing else rules the pod out. Empty or [status.StateOutside] leaves it alone: it starts, and its
	// traffic bypasses the mesh. [status.StateRefused] refuses it. [status.StateCaptured] redirects it as any other: where nothing listens on
	// the proxy's ports, its connections are refused. With either, StatusAnnotation and Required are not demanded of such a pod, its
	// annotations alone rule out less (see [Policy.RuleOut]), and no pod is presumed to be out of the mesh (see [Policy.PresumeOut]).
	MissingProxy status.State
	// DisableEnv is a boolean variable of the proxy container that disables the mesh for the pod.
	DisableEnv string
	// ProxyCommand and ProxyTypes select by the proxy's first two arguments:
	// when the first is ProxyCommand, the second must be one of ProxyTypes.
	ProxyCommand string
	ProxyTypes   []string
	// InjectKey is the label or annotation that says whether the pod is injected.
	// A label hides the annotation, whatever its value.
	InjectKey string
	// InjectOn and InjectOff are the values of InjectKey, exactly as written.
	// With both empty the value is a boolean, in any form of strconv.ParseBool.
	InjectOn, InjectOff []string
	// InjectSelects makes InjectKey select a pod that it says on for, whatever Selectors say of it: together they read "by the
	// label of the namespace, or by the pod's own annotation". Without it, such a pod needs a selector too, and a pod that is left
	// alone for the lack of one has a warning.
	InjectSelects bool
	// ForeignAnnotation marks pods that have a proxy of another kind, which are left alone.
	ForeignAnnotation string
	// Selectors pick pods by labels; one that matches is enough. Nil checks nothing; an empty list that is not nil picks no
	// pod.
	Selectors []Selector
	// StatusAnnotation is an annotation that the injector leaves on each pod, with any value.
	StatusAnnotation string
	// Required are annotations that the injector leaves with certain values.
	Required []Requirement
	// Decline is the dialect's last word on a pod that nothing above rules out: with a reason other than "" the pod is
	// left alone. Detail is a sentence that names what was found. The reason is [status.CodeDryRun], [status.CodeInterceptionNone], or a code
	// of the dialect's own, in lower case with hyphens; logs, explain, events and metrics report it. Decline must be
	// pure, and read nothing that dialect.Input says a pod may lack. If it panics, it cannot be told whether the pod is in the mesh: see
	// [Decision].Err.
	//
	// It is also asked where only the pod's annotations are known. Proxy is then
	// nil, and it must decline only what no other part of the pod can overrule.
	Decline func(pod *corev1.Pod, proxy *corev1.Container) (reason status.Code, detail string)
	// Traces are annotations of which the injector leaves at least one on every pod that it injects. They do not decide
	// about a pod that can be read; see [Policy.PresumeOut].
	Traces []string
}

// Selector matches a pod by its own labels and those of its namespace. An empty half matches everything; with an invalid one it
// cannot be told about any pod whether the Policy selects it (see [Decision].Err).
type Selector struct {
	Pod       metav1.LabelSelector `json:"podSelector"`
	Namespace metav1.LabelSelector `json:"namespaceSelector"`
}

// Requirement is an annotation that a pod must have: one of the keys with one of
// the values, or, without values, with any but the empty string.
type Requirement struct {
	Keys   []string
	Values []string
}

// ErrNoPod: a pod that is decided on is nil. Check with errors.Is(err, selection.ErrNoPod).
var ErrNoPod = errors.New("no pod is given, so nothing can be decided about it")

// undecidable is the Decision about a pod of which it cannot be told whether it is in the mesh.
func undecidable(err error) Decision {
	return Decision{Selected: true, Reason: status.CodeSelected, Detail: err.Error(), Undecided: true, Err: err}
}

// decided makes the Decision that rules a pod out, for the functions below. They report whether they do.
func decided(r status.Code, format string, args ...any) (Decision, bool) {
	return Decision{Reason: r, Detail: fmt.Sprintf(format, args...)}, true
}

// Decide reports whether the pod's traffic is to be redirected. The Namespace object may be nil: the Decision is then
// Undecided where its labels could change it, see [Policy.ReadsNamespace]. It does not panic if Decline does. Of a nil pod, or by a Policy with
// selectors or names that can match nothing, the Decision is none, and has Err.
func (p Policy) Decide(pod *corev1.Pod, namespace *corev1.Namespace) Decision {
	if pod == nil {
		return undecidable(ErrNoPod)
	}
	if errs := p.matchless(); len(errs) > 0 {
		return undecidable(errors.Join(errs...))
	}
	var warnings warning.List
	d, out := p.ruleOut(pod, namespace, &warnings)
	if !out {
		d = Decision{Selected: true, Reason: status.CodeSelected, Detail: p.selectedBecause(pod)}
		if len(p.ProxyContainers) > 0 && p.Proxy(pod) == nil {
			d.Reason, d.Detail = status.CodeProxyMissing, p.withoutProxy()+", though "+d.Detail
		}
		d.Undecided = namespace == nil && len(p.ExcludedNamespaceLabels) > 0
	}
	d.Warnings = append(warnings, p.unheeded(pod, d)...)
	return d
}

func (p Policy) ruleOut(pod *corev1.Pod, namespace *corev1.Namespace, warnings *warning.List) (Decision, bool) {
	proxy := p.Proxy(pod)
	if p.ExcludesNamespace(pod.Namespace) {
		return decided(status.CodeExcludedNamespace, "namespace %q is excluded", pod.Namespace)
	}
	if pod.Spec.HostNetwork {
		return decided(status.CodeHostNetwork, "the pod uses the host's network")
	}
	if name := p.setsRules(pod); name != "" {
		return decided(status.CodeInitContainer, "container %q sets the rules itself", name)
	}
	if v := env(proxy, p.DisableEnv); v != "" {
		if off, _ := readSwitch(p.DisableEnv, p.DisableEnv, v, nil, nil, warnings); off {
			return decided(status.CodeProxyDisabled, "%s=%s on container %q", p.DisableEnv, v, proxy.Name)
		}
	}
	missing := len(p.ProxyContainers) > 0 && proxy == nil
	if d, out := p.noProxy(pod, namespace); missing && out {
		return d, true
	}
	if kind, ok := p.proxyType(proxy); ok && !slices.Contains(p.ProxyTypes, kind) {
		return decided(status.CodeProxyType, "the proxy is a %s, not a %s", truncate.Quote(kind), strings.Join(p.ProxyTypes, " or "))
	}
	if kind, value := p.inject(pod); value != "" {
		if on, ok := readSwitch(kind+" "+p.InjectKey, p.InjectKey, value, p.InjectOn, p.InjectOff, warnings); ok && !on {
			return decided(status.CodeInjectDisabled, "%s %s is %s", kind, p.InjectKey, truncate.Quote(value))
		}
	}
	if d, out := p.foreign(pod.Annotations); out {
		return d, true
	}
	if d, out := p.notEnabled(pod, namespace); out {
		return d, true
	}
	if d, out := p.notInjected(pod.Annotations); out && !missing {
		return d, true
	}
	if d, out := p.declined(pod, proxy); out {
		return d, true
	}
	for _, by := range p.ExcludedNamespaceLabels {
		if namespace != nil && by.Matches(labels.Set(namespace.Labels)) {
			return decided(status.CodeNamespaceExcludedByLabel, "namespace %q is excluded: its labels match %s", pod.Namespace, truncate.Quote(by.String()))
		}
	}
	return Decision{}, false
}

// readSwitch reads a value that turns something on or off: by words of its own, or
// as a boolean. One that is neither is a warning.
func readSwitch(what, key, value string, on, off []string, warnings *warning.List) (b, ok bool) {
	kind := "not a boolean"
	if len(on)+len(off) > 0 {
		b, ok = slices.Contains(on, value), slices.Contains(on, value) || slices.Contains(off, value)
		kind = "not " + strings.Join(slices.Concat(on, off), " or ")
	} else {
		var err error
		b, err = strconv.ParseBool(value)
		ok = err == nil
	}
	if !ok {
		*warnings = append(*warnings, warning.New(warning.Invalid, key, "%s=%s is %s, so it counts as not set", what, truncate.Quote(value), kind))
	}
	return b, ok
}

func (p Policy) selectedBecause(pod *corev1.Pod) string {
	proxy := p.Proxy(pod)
	switch {
	case p.optsIn(pod), proxy == nil && len(p.ProxyContainers) > 0 && p.saysOn(pod):
		kind, value := p.inject(pod)
		return fmt.Sprintf("%s %s is %s", kind, p.InjectKey, truncate.Quote(value))
	case proxy == nil && p.Selectors != nil:
		return "a selector matches the labels of the pod and its namespace"
	case proxy == nil:
		return "nothing rules the pod out"
	case p.StatusAnnotation == "":
		return fmt.Sprintf("container %q is there", proxy.Name)
	}
	return fmt.Sprintf("container %q and annotation %s are there", proxy.Name, p.StatusAnnotation)
}

// ExcludesNamespace reports whether the namespace is in ExcludedNamespaces. It needs no pod.
func (p Policy) ExcludesNamespace(name string) bool {
	return slices.Contains(p.ExcludedNamespaces, name)
}

// RuleOut decides by a pod's annotations alone, all of them, which a container runtime may pass to a plugin. It reports
// whether they rule the pod out; if not, nothing is decided yet, and the Decision has no more than Err.
func (p Policy) RuleOut(annotations map[string]string) (Decision, bool) {
	if errs := p.matchless(); len(errs) > 0 {
		return Decision{Err: errors.Join(errs...)}, false
	}
	if d, out := p.foreign(annotations); out {
		return d, true
	}
	if d, out := p.notInjected(annotations); out && !p.minds() {
		return d, true
	}
	d, out := p.declined(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}, nil)
	return d, out && d.Err == nil
}

// PresumeOut is for a pod that cannot be read. It decides by the pod's annotations, all of them, or nil when they are
// not known, and reports whether none of Traces is among them, so that the injector has not touched the pod. Such a pod
// may be let through, where otherwise no pod of the node would start. Where the pod can be read, [Policy.Decide] has
// the last word.
func (p Policy) PresumeOut(annotations map[string]string) (Decision, bool) {
	injected := slices.ContainsFunc(p.Traces, func(key string) bool { _, ok := annotations[key]; return ok })
	if annotations == nil || len(p.Traces) == 0 || injected || p.minds() || len(p.matchless()) > 0 {
		return Decision{}, false
	}
	return decided(status.CodeNotInjected, "annotation %s is absent", strings.Join(p.Traces, " or "))
}

// minds reports whether a pod without its proxy is not just left alone.
func (p Policy) minds() bool { return p.MissingProxy != "" && p.MissingProxy != status.StateOutside }

func (p Policy) withoutProxy() string {
	return "no container is named " + strings.Join(p.ProxyContainers, " or ")
}

// noProxy rules out a pod without a proxy, unless it is to have one and MissingProxy minds.
func (p Policy) noProxy(pod *corev1.Pod, namespace *corev1.Namespace) (Decision, bool) {
	d, out := decided(status.CodeNoProxy, "%s", p.withoutProxy())
	switch {
	case !p.minds(), p.Selectors == nil && !p.saysOn(pod):
		return d, out
	case p.Selectors != nil:
		unselected, not := p.notEnabled(pod, namespace)
		d.Undecided = unselected.Undecided
		return d, not
	}
	return Decision{}, false
}

func (p Policy) notInjected(annotations map[string]string) (Decision, bool) {
	if _, ok := annotations[p.StatusAnnotation]; !ok && p.StatusAnnotation != "" {
		return decided(status.CodeNotInjected, "annotation %s is absent", p.StatusAnnotation)
	}
	for _, r := range p.Required {
		if !slices.ContainsFunc(r.Keys, func(key string) bool { return r.allows(annotations[key]) }) {
			return decided(status.CodeNotInjected, "%s", r.unmet(annotations))
		}
	}
	return Decision{}, false
}

// declined asks Decline. Nothing else calls it, so that a panic there is an answer about one pod.
func (p Policy) declined(pod *corev1.Pod, proxy *corev1.Container) (d Decision, out bool) {
	if p.Decline == nil {
		return Decision{}, false
	}
	defer func() {
		if v := recover(); v != nil {
			d, out = undecidable(fmt.Errorf("%w: %s", errDecline, truncate.Text(fmt.Sprint(v), maxPanic))), true
		}
	}()
	reason, detail := p.Decline(pod, proxy)
	return Decision{Reason: reason, Detail: detail}, reason != ""
}

var errDecline = errors.New("its Policy.Decline panics")

const maxPanic = 200

func (p Policy) foreign(annotations map[string]string) (Decision, bool) {
	if _, ok := annotations[p.ForeignAnnotation]; !ok || p.ForeignAnnotation == "" {
		return Decision{}, false
	}
	return decided(status.CodeHasSidecar, "annotation %s is there: the pod has a proxy of its own", p.ForeignAnnotation)
}

func (r Requirement) allows(value string) bool {
	return value != "" && (len(r.Values) == 0 || slices.Contains(r.Values, value))
}

// unmet describes the annotation that does not meet the requirement.
func (r Requirement) unmet(annotations map[string]string) string {
	for _, key := range r.Keys {
		if v, ok := annotations[key]; ok {
			return fmt.Sprintf("annotation %s is %s", key, truncate.Quote(v))
		}
	}
	return fmt.Sprintf("annotation %s is absent", strings.Join(r.Keys, " or "))
}

func (p Policy) notEnabled(pod *corev1.Pod, namespace *corev1.Namespace) (Decision, bool) {
	undecided := false
	for _, s := range p.Selectors {
		switch {
		case !matches(&s.Pod, pod.Labels):
		case namespace == nil && s.readsNamespace():
			undecided = true
		case namespace == nil, matches(&s.Namespace, namespace.Labels):
			return Decision{}, false
		}
	}
	switch {
	case p.Selectors == nil, p.optsIn(pod):
		return Decision{}, false
	case undecided:
		d, out := decided(status.CodeNotEnabled, "no selector matches the pod's own labels, and those of its namespace are not known")
		d.Undecided = true
		return d, out
	}
	return decided(status.CodeNotEnabled, "no selector matches the labels of the pod and its namespace")
}

// matches takes a selector that is valid, as those of a Policy are once it decides.
func matches(by *metav1.LabelSelector, has map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(by)
	return err == nil && selector.Matches(labels.Set(has))
}

func (s Selector) readsNamespace() bool {
	return len(s.Namespace.MatchLabels)+len(s.Namespace.MatchExpressions) > 0
}

// ReadsNamespace reports whether the labels of a namespace may decide about any of its pods. Whether they may about a certain
// pod, [Policy.Decide] says without them.
func (p Policy) ReadsNamespace() bool {
	return len(p.ExcludedNamespaceLabels) > 0 || slices.ContainsFunc(p.Selectors, Selector.readsNamespace)
}

// Validate reports what makes the Policy select other pods than it seems to, joined: selectors that are invalid or none, settings
// about InjectKey that say nothing, names that nothing in a cluster can have, and requirements that no pod can meet.
func (p Policy) Validate() error {
	errs := p.validateInject()
	if p.Selectors != nil && len(p.Selectors) == 0 && !p.InjectSelects {
		errs = append(errs, errors.New("its Selectors is an empty list, which picks no pod; nil checks nothing"))
	}
	if len(p.ProxyTypes) > 0 && p.ProxyCommand == "" {
		errs = append(errs, errors.New("ProxyTypes mean nothing without ProxyCommand"))
	}
	switch p.MissingProxy {
	case "", status.StateOutside:
	case status.StateRefused, status.StateCaptured:
		if len(p.ProxyContainers) == 0 || p.InjectKey == "" && p.Selectors == nil {
			errs = append(errs, errors.New("MissingProxy means nothing without ProxyContainers, and Selectors or InjectKey to say which pods are to have one"))
		}
	default:
		errs = append(errs, fmt.Errorf("MissingProxy is %s, and not empty, %q, %q or %q", truncate.Quote(string(p.MissingProxy)), status.StateOutside, status.StateRefused, status.StateCaptured))
	}
	if len(p.ProxyContainers) == 0 && (p.DisableEnv != "" || p.ProxyCommand != "") {
		errs = append(errs, errors.New("DisableEnv and ProxyCommand are of the proxy container, and ProxyContainers names none"))
	}
	return errors.Join(append(errs, p.matchless()...)...)
}

// matchless returns an error for each part of the Policy that can match nothing, or everything, which its author cannot have meant: to
// decide by it would be to leave alone pods of the mesh. It takes some microseconds, so every decision asks it.
func (p Policy) matchless() (errs []error) {
	for i := range p.Selectors {
		for _, half := range []struct {
			name string
			by   *metav1.LabelSelector
		}{{"pod", &p.Selectors[i].Pod}, {"namespace", &p.Selectors[i].Namespace}} {
			if _, err := metav1.LabelSelectorAsSelector(half.by); err != nil {
				errs = append(errs, fmt.Errorf("%s selector %d: %w", half.name, i+1, err))
			}
		}
	}
	for i, by := range p.ExcludedNamespaceLabels {
		if by == nil {
			errs = append(errs, fmt.Errorf("ExcludedNamespaceLabels %d is nil", i+1))
		} else if by.Empty() {
			errs = append(errs, fmt.Errorf("ExcludedNamespaceLabels %d requires nothing, so it excludes every namespace", i+1))
		}
	}
	if p.ProxyCommand != "" && len(p.ProxyTypes) == 0 {
		errs = append(errs, fmt.Errorf("ProxyCommand %s without ProxyTypes, so that no proxy is of one", truncate.Quote(p.ProxyCommand)))
	}
	names := func(field string, names []string, can func(string) []string) {
		for _, name := range names {
			switch {
			case name == "":
				errs = append(errs, fmt.Errorf("%s has an empty name", field))
			case can != nil && len(can(name)) > 0:
				errs = append(errs, fmt.Errorf("%s: nothing in a cluster can have the name %s", field, truncate.Quote(name)))
			}
		}
	}
	names("ExcludedNamespaces", p.ExcludedNamespaces, nil) // an operator adds to them
	names("InitContainers", p.InitContainers, validation.IsDNS1123Label)
	names("PrivilegedInitContainers", p.PrivilegedInitContainers, validation.IsDNS1123Label)
	names("ProxyContainers", p.ProxyContainers, validation.IsDNS1123Label)
	names("Traces", p.Traces, wrongKey)
	for i, r := range p.Required {
		field := fmt.Sprintf("requirement %d", i+1)
		names(field, r.Keys, wrongKey)
		if len(r.Keys) == 0 {
			errs = append(errs, fmt.Errorf("%s has no Keys, so no pod meets it", field))
		}
		if slices.Contains(r.Values, "") {
			errs = append(errs, fmt.Errorf("%s has an empty value, which meets nothing", field))
		}
	}
	for _, one := range [][2]string{{"InjectKey", p.InjectKey}, {"ForeignAnnotation", p.ForeignAnnotation}, {"StatusAnnotation", p.StatusAnnotation}} {
		if one[1] != "" && len(wrongKey(one[1])) > 0 {
			errs = append(errs, fmt.Errorf("%s: no annotation can have the key %s", one[0], truncate.Quote(one[1])))
		}
	}
	return errs
}

// wrongKey returns why no annotation can have the key.
func wrongKey(key string) []string { return validation.IsQualifiedName(strings.ToLower(key)) }

// Proxy returns the pod's proxy container, regular containers before init containers; nil when it has none.
func (p Policy) Proxy(pod *corev1.Pod) *corev1.Container {
	if pod == nil {
		return nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if slices.Contains(p.ProxyContainers, list[i].Name) {
				return &list[i]
			}
		}
	}
	return nil
}

// SetsRules reports whether a container of the pod's init containers sets the rules from inside the pod.
func (p Policy) SetsRules(c *corev1.Container) bool {
	if slices.Contains(p.InitContainers, c.Name) {
		return true
	}
	sc := c.SecurityContext
	return slices.Contains(p.PrivilegedInitContainers, c.Name) && sc != nil && (sc.Privileged != nil && *sc.Privileged ||
		sc.Capabilities != nil && slices.ContainsFunc(sc.Capabilities.Add, func(c corev1.Capability) bool { return c == "NET_ADMIN" || c == "ALL" }))
}

// setsRules returns the name of the pod's container that does; a regular one does by its name alone.
func (p Policy) setsRules(pod *corev1.Pod) string {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; p.SetsRules(c) {
			return c.Name
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; slices.Contains(p.InitContainers, c.Name) {
			return c.Name
		}
	}
	return ""
}

// proxyType returns the proxy's kind, if its arguments name one.
func (p Policy) proxyType(proxy *corev1.Container) (string, bool) {
	if proxy == nil || p.ProxyCommand == "" || len(proxy.Args) < 2 || proxy.Args[0] != p.ProxyCommand {
		return "", false
	}
	return proxy.Args[1], true
}

// env returns the literal value of a container's variable, or "". The last of
// several of one name counts, as it does to the process.
func env(c *corev1.Container, name string) string {
	if c == nil || name == "" {
		return ""
	}
	for i := len(c.Env) - 1; i >= 0; i-- {
		if c.Env[i].Name == name {
			return c.Env[i].Value
		}
	}
	return ""
}
