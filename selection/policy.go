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

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect"
)

// Policy is a mesh's rule for which pods it redirects. An empty field checks nothing, so the zero Policy selects every
// pod that has a network namespace of its own.
type Policy struct {
	// ExcludedNamespaces are namespaces whose pods are left alone.
	ExcludedNamespaces []string
	// ExcludedNamespaceLabels select namespaces whose pods are left alone; one that matches is enough. They are asked last,
	// so that the Namespace object is needed only for pods that nothing else rules out. See [ParseLabels].
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
	ProxyContainers []string
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
	// left alone. Detail is a sentence that names what was found. The reason is [DryRun], [InterceptionNone], or a code
	// of the dialect's own, in lower case with hyphens; logs, explain, events and metrics report it. Decline must be
	// pure, and read nothing that dialect.Trim leaves out.
	//
	// It is also asked where only the pod's annotations are known. Proxy is then
	// nil, and it must decline only what no other part of the pod can overrule.
	Decline func(pod *corev1.Pod, proxy *corev1.Container) (reason Reason, detail string)
	// Traces are annotations of which the injector leaves at least one on every pod that it injects. They do not decide
	// about a pod that can be read; see [Policy.PresumeOut].
	Traces []string
}

// Selector matches a pod by its own labels and those of its namespace. An empty half matches everything, an invalid one
// nothing (see [Policy.Validate]). Without a Namespace object its labels count as absent.
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

// decided makes the Decision that rules a pod out, for the functions below. They report whether they do.
func decided(r Reason, format string, args ...any) (Decision, bool) {
	return Decision{Reason: r, Detail: fmt.Sprintf(format, args...)}, true
}

// Decide reports whether the pod's traffic is to be redirected. Only Selectors and ExcludedNamespaceLabels read the
// Namespace object. If it is nil, neither matches by the labels of a namespace; dialect.Plan refuses to guess about the
// latter.
func (p Policy) Decide(pod *corev1.Pod, namespace *corev1.Namespace) Decision {
	var warnings redirect.Warnings
	d, out := p.ruleOut(pod, namespace, &warnings)
	if !out {
		d = Decision{Selected: true, Reason: Selected, Detail: p.selectedBecause(p.Proxy(pod))}
	}
	d.Warnings = warnings
	return d
}

func (p Policy) ruleOut(pod *corev1.Pod, namespace *corev1.Namespace, warnings *redirect.Warnings) (Decision, bool) {
	proxy := p.Proxy(pod)
	if p.ExcludesNamespace(pod.Namespace) {
		return decided(ExcludedNamespace, "namespace %q is excluded", pod.Namespace)
	}
	if pod.Spec.HostNetwork {
		return decided(HostNetwork, "the pod uses the host's network")
	}
	if name := p.setsRules(pod); name != "" {
		return decided(InitContainer, "container %q sets the rules itself", name)
	}
	if v := env(proxy, p.DisableEnv); v != "" {
		if off, _ := readSwitch(p.DisableEnv, p.DisableEnv, v, nil, nil, warnings); off {
			return decided(ProxyDisabled, "%s=%s on container %q", p.DisableEnv, v, proxy.Name)
		}
	}
	if len(p.ProxyContainers) > 0 && proxy == nil {
		return decided(NoProxy, "no container is named %s", strings.Join(p.ProxyContainers, " or "))
	}
	if kind, ok := p.proxyType(proxy); ok && !slices.Contains(p.ProxyTypes, kind) {
		return decided(ProxyType, "the proxy is a %s, not a %s", brief.Quote(kind), strings.Join(p.ProxyTypes, " or "))
	}
	if kind, value := p.inject(pod); value != "" {
		if on, ok := readSwitch(kind+" "+p.InjectKey, p.InjectKey, value, p.InjectOn, p.InjectOff, warnings); ok && !on {
			return decided(InjectDisabled, "%s %s is %s", kind, p.InjectKey, brief.Quote(value))
		}
	}
	if d, out := p.foreign(pod.Annotations); out {
		return d, true
	}
	if p.Selectors != nil && !slices.ContainsFunc(p.Selectors, func(s Selector) bool { return s.matches(pod, namespace) }) {
		return decided(NotEnabled, "no selector matches the labels of the pod and its namespace")
	}
	if d, out := p.notInjected(pod.Annotations); out {
		return d, true
	}
	if d, out := p.declined(pod, proxy); out {
		return d, true
	}
	for _, by := range p.ExcludedNamespaceLabels {
		if namespace != nil && by.Matches(labels.Set(namespace.Labels)) {
			return decided(NamespaceExcludedByLabel, "namespace %q is excluded: its labels match %s", pod.Namespace, brief.Quote(by.String()))
		}
	}
	return Decision{}, false
}

// readSwitch reads a value that turns something on or off: by words of its own, or
// as a boolean. One that is neither is a warning.
func readSwitch(what, key, value string, on, off []string, warnings *redirect.Warnings) (b, ok bool) {
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
		*warnings = append(*warnings, redirect.Warningf(redirect.WarningInvalid, key, "%s=%s is %s, so it counts as not set", what, brief.Quote(value), kind))
	}
	return b, ok
}

func (p Policy) selectedBecause(proxy *corev1.Container) string {
	switch {
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
// whether they rule the pod out; if not, nothing is decided yet.
func (p Policy) RuleOut(annotations map[string]string) (Decision, bool) {
	if d, out := p.foreign(annotations); out {
		return d, true
	}
	if d, out := p.notInjected(annotations); out {
		return d, true
	}
	return p.declined(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}, nil)
}

// PresumeOut is for a pod that cannot be read. It decides by the pod's annotations, all of them, or nil when they are
// not known, and reports whether none of Traces is among them, so that the injector has not touched the pod. Such a pod
// may be let through, where otherwise no pod of the node would start. Where the pod can be read, [Policy.Decide] has
// the last word.
func (p Policy) PresumeOut(annotations map[string]string) (Decision, bool) {
	injected := slices.ContainsFunc(p.Traces, func(key string) bool { _, ok := annotations[key]; return ok })
	if annotations == nil || len(p.Traces) == 0 || injected {
		return Decision{}, false
	}
	return decided(NotInjected, "annotation %s is absent", strings.Join(p.Traces, " or "))
}

func (p Policy) notInjected(annotations map[string]string) (Decision, bool) {
	if _, ok := annotations[p.StatusAnnotation]; !ok && p.StatusAnnotation != "" {
		return decided(NotInjected, "annotation %s is absent", p.StatusAnnotation)
	}
	for _, r := range p.Required {
		if !slices.ContainsFunc(r.Keys, func(key string) bool { return r.allows(annotations[key]) }) {
			return decided(NotInjected, "%s", r.unmet(annotations))
		}
	}
	return Decision{}, false
}

func (p Policy) declined(pod *corev1.Pod, proxy *corev1.Container) (Decision, bool) {
	if p.Decline == nil {
		return Decision{}, false
	}
	reason, detail := p.Decline(pod, proxy)
	return Decision{Reason: reason, Detail: detail}, reason != ""
}

func (p Policy) foreign(annotations map[string]string) (Decision, bool) {
	if _, ok := annotations[p.ForeignAnnotation]; !ok || p.ForeignAnnotation == "" {
		return Decision{}, false
	}
	return decided(HasSidecar, "annotation %s is there: the pod has a proxy of its own", p.ForeignAnnotation)
}

func (r Requirement) allows(value string) bool {
	return value != "" && (len(r.Values) == 0 || slices.Contains(r.Values, value))
}

// unmet describes the annotation that does not meet the requirement.
func (r Requirement) unmet(annotations map[string]string) string {
	for _, key := range r.Keys {
		if v, ok := annotations[key]; ok {
			return fmt.Sprintf("annotation %s is %s", key, brief.Quote(v))
		}
	}
	return fmt.Sprintf("annotation %s is absent", strings.Join(r.Keys, " or "))
}

func (s Selector) matches(pod *corev1.Pod, namespace *corev1.Namespace) bool {
	var of labels.Set
	if namespace != nil {
		of = namespace.Labels
	}
	half := func(by *metav1.LabelSelector, of labels.Set) bool {
		selector, err := metav1.LabelSelectorAsSelector(by)
		return err == nil && selector.Matches(of)
	}
	return half(&s.Pod, pod.Labels) && half(&s.Namespace, of)
}

// Validate reports invalid selectors, joined.
func (p Policy) Validate() error {
	var errs []error
	for i := range p.Selectors {
		for name, half := range map[string]*metav1.LabelSelector{"pod": &p.Selectors[i].Pod, "namespace": &p.Selectors[i].Namespace} {
			if _, err := metav1.LabelSelectorAsSelector(half); err != nil {
				errs = append(errs, fmt.Errorf("%s selector %d: %w", name, i+1, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Proxy returns the pod's proxy container, regular containers before init containers; nil when it has none.
func (p Policy) Proxy(pod *corev1.Pod) *corev1.Container {
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

// inject returns the value of InjectKey, and where it stands.
func (p Policy) inject(pod *corev1.Pod) (kind, value string) {
	if p.InjectKey == "" {
		return "", ""
	}
	if v, ok := pod.Labels[p.InjectKey]; ok {
		return "label", v
	}
	return "annotation", pod.Annotations[p.InjectKey]
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
