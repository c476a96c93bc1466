package explain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/program/remedy"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// firstRemedy returns the first remedy of a code.
func firstRemedy(k status.Kind, c string) string {
	row, _ := status.Lookup(k, status.Code(c))
	return row.Remedy()
}

func (x Explanation) past() []Notice {
	all := []Notice{}
	for _, b := range x.Plan.Bypasses {
		what, _, _ := strings.Cut(b.String(), "; ") // what closes it is said below
		all = append(all, Notice{string(b.Code), what, firstRemedy(status.KindBypass, string(b.Code))})
	}
	return all
}

// exclusions say what a field of the Redirect leaves out if the pod sets it.
var exclusions = map[string]string{
	"inbound.ports":          "inbound connections to other ports are not captured",
	"inbound.excludePorts":   "inbound connections to these ports are not captured",
	"inbound.excludeSources": "connections from these addresses are not captured",
	"outbound.ports":         "outbound connections to other ports are captured only by their destination",
	"outbound.excludePorts":  "outbound connections to these ports are not captured",
	"outbound.cidrs":         "outbound connections to other destinations are not captured",
	"outbound.excludeCIDRs":  "outbound connections to these destinations are not captured",
	"outbound.exclude":       "some outbound connections are not captured",
	"includeInterfaces":      "connections over other interfaces are not captured",
	"outbound.dropUDPPorts":  "UDP to these ports is dropped, so that HTTP/3 falls back to TCP",
	"excludeInterfaces":      "connections over these interfaces are not captured",
}

// excluded lists what the pod's own settings leave out.
func (x Explanation) excluded() []Notice {
	all := []Notice{}
	for _, o := range x.Plan.Origins {
		what, known := exclusions[o.Field]
		if !known || o.Source == redirect.FromDefault || o.Value == "*" || o.Value == "" {
			continue
		}
		setting := string(o.Source) + " " + o.Key
		all = append(all, Notice{o.Field, fmt.Sprintf("by %s=%s, %s", setting, truncate.Quote(o.Value), what), "change the " + setting + ", and create the pod anew"})
	}
	return all
}

// BeforeProxy names the init containers that have no network, since they run before the proxy; empty: there are none.
func (x Explanation) BeforeProxy() string {
	if len(x.Plan.BeforeProxy) == 0 {
		return ""
	}
	names, more := x.Plan.BeforeProxy, ""
	if n := len(names) - 8; n > 0 {
		names, more = names[:8], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("init containers run before the proxy, and have no network once the pod is captured: %s%s", truncate.Quote(strings.Join(names, ", ")), more)
}

func (x Explanation) warned() []Notice {
	all := []Notice{}
	for _, list := range []warning.List{x.Plan.Decision.Warnings, x.Plan.Warnings} {
		for _, w := range list {
			all = append(all, Notice{string(w.Code), w.Text, firstRemedy(status.KindWarning, string(w.Code))})
		}
	}
	if text := x.BeforeProxy(); text != "" {
		all = append(all, Notice{string(warning.BeforeProxy), text, firstRemedy(status.KindWarning, string(warning.BeforeProxy))})
	}
	return all
}

// refused says of each thing that is wrong how to put it right.
func (x Explanation) refused(v *Verdict) {
	pod, err := x.Subject.Pod, x.err
	v.Sentence = "This pod is refused, and does not start, because its settings are wrong."
	if errors.Is(err, redirect.ErrNamespaceUnknown) {
		v.Code = status.CodeNamespaceUnknown
		v.Sentence = "It cannot be told whether this pod is captured, because its namespace is not known."
		if !x.Plan.Decision.Undecided {
			v.Sentence = "This pod is in the mesh, and it cannot be told how it is captured, because its namespace is not known, from which it may inherit settings."
		}
		v.Do = append(v.Do, giveNamespace(x.identity, pod, x.online),
			"On a node such a pod is refused: see that the agent may read namespaces (its log says why it cannot)")
		v.Because = reasonsOf(err)
		return
	}
	if invalid := (*dialect.InvalidError)(nil); errors.As(err, &invalid) {
		v.Sentence = "This pod is refused, and does not start, because the dialect " + invalid.Dialect + " is wrong, and not the pod."
		v.Because = reasonsOf(err)
		v.Do = append(v.Do, "Nothing can be done about the pod: the dialect is part of the plugin, and its makers have to correct it")
		return
	}
	if x.Plan.Decision.Reason == status.CodeProxyMissing && x.meshes.Lookup(x.Plan.Dialect).Policy.MissingProxy == status.StateRefused {
		lacking := x.lacking()
		v.Sentence = "This pod is refused, and does not start, because " + lacking.because + ", and its mesh refuses such pods."
		v.Do = append(v.Do, lacking.do...)
		return
	}
	all := parts(err)
	if !slices.ContainsFunc(all, func(err error) bool { return !errors.As(err, new(*dialect.BypassError)) }) {
		v.Sentence = "This pod is refused, and does not start, because a container of it could bypass the mesh, and the plugin is told to refuse such pods."
		if bypass := (*dialect.BypassError)(nil); errors.As(err, &bypass) && bypass.Code == dialect.BypassSandboxed {
			v.Sentence = "This pod is refused, and does not start, because its runtime would take it past the mesh."
		}
	}
	for _, part := range all {
		because := part.Error()
		if errors.As(part, new(*dialect.BypassError)) {
			because, _, _ = strings.Cut(because, "; ") // what closes it is said below
		}
		v.Because = append(v.Because, because)
		v.Do = append(v.Do, correct(pod, part))
	}
	v.Do = append(v.Do, "Correct it where the pod comes from, its template or manifest: the pod that is there keeps what it has")
}

// correct is the remedy of one fault.
func correct(pod *corev1.Pod, err error) string {
	var setting *redirect.SettingError
	var bypass *dialect.BypassError
	var blamed *dialect.SettingsError
	switch {
	case errors.As(err, &setting):
		return correctSetting(pod, setting)
	case errors.As(err, &bypass) && bypass.Code == dialect.BypassNetRaw:
		return fmt.Sprintf("Container %q: drop its capabilities (securityContext.capabilities.drop: [ALL]) and run it unprivileged; or allow such pods: refuseNetRaw=false and refuseProxyUID=false in the chart's values", bypass.Container)
	case errors.As(err, &bypass) && bypass.Code == dialect.BypassSandboxed:
		return "Give the pod a runtime class that shares the node's kernel (runtimeClassName), or take it out of the mesh; " +
			"or allow such pods, which bypass the mesh: allowSandboxed=true in the chart's values. A class that does share the kernel, in spite of its name: sandboxedClasses lists those that do not"
	case errors.As(err, &bypass):
		return fmt.Sprintf("Container %q: give it another %s than the proxy's, %d; or allow such pods: refuseProxyUID=false in the chart's values", bypass.Container, bypass.Field, bypass.ID)
	case errors.As(err, &blamed):
		return "Change what these settings ask for together: " + blamed.Setting()
	}
	return "Change the pod's settings so that this does not hold: " + err.Error()
}

func correctSetting(pod *corev1.Pod, e *redirect.SettingError) string {
	allowed := cmp.Or(e.Allowed, "a value that is valid")
	switch e.Source {
	case redirect.FromNamespace:
		return fmt.Sprintf("Correct it on the namespace, to %s: kubectl annotate --overwrite namespace %s %s=VALUE", allowed, remedy.Word(pod.Namespace), e.Key)
	case redirect.FromAnnotation:
		if _, ok := pod.Annotations[e.Key]; ok {
			return fmt.Sprintf("Give the annotation %s a value that is allowed (%s); or do without it: %s", e.Key, allowed, remedy.Set(pod, remedy.Annotations, e.Key, nil))
		}
		for i := strings.LastIndex(e.Key, "."); i > 0; i = strings.LastIndex(e.Key[:i], ".") { // a key of the YAML or JSON in an annotation
			if _, ok := pod.Annotations[e.Key[:i]]; ok {
				return fmt.Sprintf("In the annotation %s, which most often the injector writes from the mesh's configuration, correct %s (allowed: %s)", e.Key[:i], e.Key[i+1:], allowed)
			}
		}
		if e.Value == "" {
			return fmt.Sprintf("The injector writes the annotation %s, not you: see that it runs and is told that there is a CNI plugin. %s", e.Key, remedy.Then("Then", pod))
		}
	case redirect.FromLabel, redirect.FromEnv, redirect.FromSecurityContext, redirect.FromArgs, redirect.FromDefault:
	}
	return fmt.Sprintf("Correct the %s, to %s", e.Setting(), allowed)
}
