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
)

// Policy is a mesh's rule for which pods it redirects. Each field that is empty
// asks for nothing, so the zero Policy selects every pod that has a network
// namespace of its own.
type Policy struct {
	// ExcludedNamespaces are left alone altogether.
	ExcludedNamespaces []string
	// InitContainers are names of containers, of either kind, that set the
	// rules from inside the pod; with one there, the plugin must not.
	InitContainers []string
	// ProxyContainers are the names that the proxy container may have, as a
	// container or as a native sidecar (an init container that keeps running).
	ProxyContainers []string
	// DisableEnv is a boolean variable of the proxy container that switches
	// the mesh off for the pod.
	DisableEnv string
	// ProxyCommand and ProxyTypes select by the proxy's first two arguments:
	// when the first is ProxyCommand, the second must be one of ProxyTypes.
	ProxyCommand string
	ProxyTypes   []string
	// InjectKey is a boolean label or annotation that says whether the pod is
	// injected. The label wins, whatever it says.
	InjectKey string
	// ForeignAnnotation is what the injector of another kind of proxy leaves on
	// its pods, which are then none of this policy's.
	ForeignAnnotation string
	// Selectors pick pods by labels; one that matches is enough.
	Selectors []Selector
	// StatusAnnotation is what the injector leaves on each pod it has dealt
	// with, whatever its value.
	StatusAnnotation string
	// Required are annotations that the injector leaves with certain values.
	Required []Requirement
	// DryRun reports whether a pod's annotations ask for a trial run, in which
	// the mesh applies no rules, and says so in a sentence. It must be pure. Nil:
	// no annotation can ask for that.
	DryRun func(annotations map[string]string) (detail string, dry bool)
	// Traces are annotations of which the injector leaves at least one on every
	// pod that it injects. They do not decide about a pod that can be read; see
	// [Policy.PresumeOut].
	Traces []string
	// NotIntercepted reports that the pod has its proxy without interception, and
	// where it says so; nil: no such pods. The proxy is nil where only the pod's
	// annotations are known: it must then go by what nothing else overrides.
	NotIntercepted func(pod *corev1.Pod, proxy *corev1.Container) (detail string, off bool)
}

// Selector matches a pod by its own labels and by those of its namespace. An
// empty half matches everything; a half that is no valid selector nothing, see
// [Policy.Validate]. Without a Namespace object its labels count as absent.
type Selector struct {
	Pod       metav1.LabelSelector `json:"podSelector"`
	Namespace metav1.LabelSelector `json:"namespaceSelector"`
}

// Requirement is an annotation that a pod must have: under one of the keys,
// one of the values, or, when none are given, any but the empty string.
type Requirement struct {
	Keys   []string
	Values []string
}

// Decide says whether the pod's traffic is to be redirected. Namespace is the
// pod's Namespace object, for policies that need it; it may be nil.
func (p Policy) Decide(pod *corev1.Pod, namespace *corev1.Namespace) Decision {
	proxy := p.Proxy(pod)
	var warnings []string
	boolean := func(what, value string) (b, ok bool) {
		b, err := strconv.ParseBool(value)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("%s=%s is not a boolean, so it counts as not set", what, brief.Quote(value)))
		}
		return b, err == nil
	}
	decide := func(r Reason, format string, args ...any) Decision {
		return Decision{Selected: r == Selected, Reason: r, Detail: fmt.Sprintf(format, args...), Warnings: warnings}
	}

	if p.ExcludesNamespace(pod.Namespace) {
		return decide(ExcludedNamespace, "namespace %q is excluded", pod.Namespace)
	}
	if pod.Spec.HostNetwork {
		return decide(HostNetwork, "the pod uses the host's network")
	}
	if name := findContainer(pod, p.InitContainers); name != "" {
		return decide(InitContainer, "container %q sets the rules itself", name)
	}
	if p.DisableEnv != "" {
		if v := env(proxy, p.DisableEnv); v != "" {
			if off, _ := boolean(p.DisableEnv, v); off {
				return decide(ProxyDisabled, "%s=%s on container %q", p.DisableEnv, v, proxy.Name)
			}
		}
	}
	if len(p.ProxyContainers) > 0 && proxy == nil {
		return decide(NoProxy, "no container is named %s", strings.Join(p.ProxyContainers, " or "))
	}
	if kind, ok := p.proxyType(proxy); ok && !slices.Contains(p.ProxyTypes, kind) {
		return decide(ProxyType, "the proxy is a %s, not a %s", brief.Quote(kind), strings.Join(p.ProxyTypes, " or "))
	}
	if kind, value := p.inject(pod); value != "" {
		if on, ok := boolean(kind+" "+p.InjectKey, value); ok && !on {
			return decide(InjectDisabled, "%s %s is %s", kind, p.InjectKey, brief.Quote(value))
		}
	}
	if d, out := p.foreign(pod.Annotations); out {
		d.Warnings = warnings
		return d
	}
	if len(p.Selectors) > 0 && !slices.ContainsFunc(p.Selectors, func(s Selector) bool { return s.matches(pod, namespace) }) {
		return decide(NotEnabled, "no selector matches the labels of the pod and its namespace")
	}
	if d, out := p.RuleOut(pod.Annotations); out {
		d.Warnings = warnings
		return d
	}
	if d, out := p.notIntercepted(pod, proxy); out {
		d.Warnings = warnings
		return d
	}
	return decide(Selected, "%s", p.selectedBecause(proxy))
}

func (p Policy) selectedBecause(proxy *corev1.Container) string {
	switch {
	case proxy == nil && len(p.Selectors) > 0:
		return "a selector matches the labels of the pod and its namespace"
	case proxy == nil:
		return "nothing rules the pod out"
	case p.StatusAnnotation == "":
		return fmt.Sprintf("container %q is there", proxy.Name)
	}
	return fmt.Sprintf("container %q and annotation %s are there", proxy.Name, p.StatusAnnotation)
}

// ExcludesNamespace reports whether the namespace is excluded: all that can be
// said of a pod by its name alone.
func (p Policy) ExcludesNamespace(name string) bool {
	return slices.Contains(p.ExcludedNamespaces, name)
}

// RuleOut decides by a pod's complete annotations alone, which a container
// runtime may know without asking anybody. It reports whether they rule the
// pod out; when they don't, nothing is decided yet.
func (p Policy) RuleOut(annotations map[string]string) (Decision, bool) {
	if d, out := p.foreign(annotations); out {
		return d, true
	}
	if p.StatusAnnotation != "" {
		if _, ok := annotations[p.StatusAnnotation]; !ok {
			return Decision{Reason: NotInjected, Detail: fmt.Sprintf("annotation %s is absent", p.StatusAnnotation)}, true
		}
	}
	for _, r := range p.Required {
		if !slices.ContainsFunc(r.Keys, func(key string) bool { return r.allows(annotations[key]) }) {
			return Decision{Reason: NotInjected, Detail: r.unmet(annotations)}, true
		}
	}
	if p.DryRun != nil {
		if detail, dry := p.DryRun(annotations); dry {
			return Decision{Reason: DryRun, Detail: detail}, true
		}
	}
	return p.notIntercepted(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}, nil)
}

// PresumeOut decides by a pod's complete annotations, nil when they are not
// known, about a pod that cannot be read: it reports whether none of Traces is
// there, so that the mesh's injector has not touched the pod. Such a pod may be
// let through, where otherwise no pod of the node would start; [Policy.Decide],
// which sees its containers too, has the last word where there is a pod.
func (p Policy) PresumeOut(annotations map[string]string) (Decision, bool) {
	if annotations == nil || len(p.Traces) == 0 {
		return Decision{}, false
	}
	for _, key := range p.Traces {
		if _, ok := annotations[key]; ok {
			return Decision{}, false
		}
	}
	return Decision{Reason: NotInjected, Detail: fmt.Sprintf("annotation %s is absent", strings.Join(p.Traces, " or "))}, true
}

func (p Policy) notIntercepted(pod *corev1.Pod, proxy *corev1.Container) (Decision, bool) {
	if p.NotIntercepted == nil {
		return Decision{}, false
	}
	detail, off := p.NotIntercepted(pod, proxy)
	if !off {
		return Decision{}, false
	}
	return Decision{Reason: InterceptionNone, Detail: detail}, true
}

func (p Policy) foreign(annotations map[string]string) (Decision, bool) {
	if _, ok := annotations[p.ForeignAnnotation]; !ok || p.ForeignAnnotation == "" {
		return Decision{}, false
	}
	return Decision{Reason: HasSidecar, Detail: fmt.Sprintf("annotation %s is there: the pod has a proxy of its own", p.ForeignAnnotation)}, true
}

func (r Requirement) allows(value string) bool {
	return value != "" && (len(r.Values) == 0 || slices.Contains(r.Values, value))
}

// unmet says what is wrong with the requirement's annotations.
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

// Validate reports selectors that cannot be, joined.
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

// Proxy returns the pod's proxy container, or nil when it has none: a
// container first, else an init container.
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

func findContainer(pod *corev1.Pod, names []string) string {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if slices.Contains(names, list[i].Name) {
				return list[i].Name
			}
		}
	}
	return ""
}

// proxyType returns the proxy's kind from its arguments, if they name one.
func (p Policy) proxyType(proxy *corev1.Container) (string, bool) {
	if proxy == nil || p.ProxyCommand == "" || len(proxy.Args) < 2 || proxy.Args[0] != p.ProxyCommand {
		return "", false
	}
	return proxy.Args[1], true
}

// inject returns what the pod says about injection, and where. A label that is
// there hides the annotation even when it is empty.
func (p Policy) inject(pod *corev1.Pod) (kind, value string) {
	if p.InjectKey == "" {
		return "", ""
	}
	if v, ok := pod.Labels[p.InjectKey]; ok {
		return "label", v
	}
	return "annotation", pod.Annotations[p.InjectKey]
}

// env returns the value of a container's variable, or "" when it is not set or
// comes from elsewhere. The last of several of one name counts, as it does to
// the process. The container may be nil.
func env(c *corev1.Container, name string) string {
	if c == nil {
		return ""
	}
	for i := len(c.Env) - 1; i >= 0; i-- {
		if c.Env[i].Name == name {
			return c.Env[i].Value
		}
	}
	return ""
}
