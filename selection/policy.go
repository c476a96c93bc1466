package selection

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
	// StatusAnnotation is what the injector leaves on each pod it has dealt with.
	StatusAnnotation string
}

// Decide says whether the pod's traffic is to be redirected. Namespace is the
// pod's Namespace object, for policies that need it; it may be nil.
func (p Policy) Decide(pod *corev1.Pod, namespace *corev1.Namespace) Decision {
	proxy := p.Proxy(pod)
	var warnings []string
	boolean := func(what, value string) (b, ok bool) {
		b, err := strconv.ParseBool(value)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("%s=%q is not a boolean, so it counts as not set", what, value))
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
		return decide(ProxyType, "the proxy is a %q, not a %s", kind, strings.Join(p.ProxyTypes, " or "))
	}
	if kind, value := p.inject(pod); value != "" {
		if on, ok := boolean(kind+" "+p.InjectKey, value); ok && !on {
			return decide(InjectDisabled, "%s %s is %q", kind, p.InjectKey, value)
		}
	}
	if d, out := p.RuleOut(pod.Annotations); out {
		d.Warnings = warnings
		return d
	}
	return decide(Selected, "%s", p.selectedBecause(proxy))
}

func (p Policy) selectedBecause(proxy *corev1.Container) string {
	switch {
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
	if p.StatusAnnotation == "" {
		return Decision{}, false
	}
	if _, ok := annotations[p.StatusAnnotation]; ok {
		return Decision{}, false
	}
	return Decision{Reason: NotInjected, Detail: fmt.Sprintf("annotation %s is absent", p.StatusAnnotation)}, true
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
