package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/selection"
)

// State is what a person wants to know first.
type State string

// The states.
const (
	Captured State = "captured" // the pod's traffic goes through the mesh
	Outside  State = "outside"  // it does not
	Refused  State = "refused"  // the pod would not start
)

// Verdict is an explanation for somebody who knows none of our terms.
type Verdict struct {
	State State `json:"state"`
	// Mesh is whose the pod is; empty if it is nobody's.
	Mesh     string `json:"mesh,omitempty"`
	Headline string `json:"headline"`
	// Because says why, and Do what to do about it.
	Because []string `json:"because"`
	Do      []string `json:"do"`
	// Past are the ways that traffic of a captured pod has past the mesh.
	Past []Past `json:"past"`
}

// Past is a way past the mesh, and how to close it.
type Past struct {
	Code dialect.BypassCode `json:"code"`
	What string             `json:"what"`
	Do   string             `json:"do"`
}

// titles are what people call the meshes.
var titles = map[string]string{"istio": "Istio (sidecar)", "ambient": "Istio (ambient)", "linkerd": "Linkerd", "kuma": "Kuma", "consul": "Consul"}

// Title is what people call a mesh.
func Title(name string) string {
	if t, ok := titles[name]; ok {
		return t
	}
	return name
}

// injected says how each mesh is told to put its proxy into a pod (the meshes' own documentation of injection).
var injected = map[string]string{
	"istio":   "label its namespace istio-injection=enabled (or istio.io/rev=REVISION)",
	"linkerd": "annotate its namespace or its template with linkerd.io/inject: enabled",
	"kuma":    "label its namespace or its template kuma.io/sidecar-injection=enabled",
	"consul":  `annotate its template with consul.hashicorp.com/connect-inject: "true"`,
}

// advice says what to do about a pod that is left alone and should not be. It follows the table of reasons in
// docs/troubleshooting.md.
var advice = map[selection.Reason]string{
	selection.ExcludedNamespace:        "take the namespace out of exclude_namespaces, then delete the pod so that it starts anew",
	selection.HostNetwork:              "set hostNetwork: false; a pod on the host's network cannot be in a mesh",
	selection.InitContainer:            "switch the mesh's injector to its CNI mode, then delete the pod; until then its own init container sets the rules",
	selection.ProxyDisabled:            "take the variable off the proxy's container, then delete the pod",
	selection.ProxyType:                "nothing, if this is a gateway: clients address it directly",
	selection.InjectDisabled:           "change that label or annotation, then delete the pod so that it is injected",
	selection.HasSidecar:               "take the sidecar out, or use its own dialect for this pod",
	selection.NotEnabled:               "label the pod or its namespace istio.io/dataplane-mode=ambient",
	selection.DryRun:                   "take dryRun out of the mesh's configuration, then delete the pod",
	selection.InterceptionNone:         "take the interception mode NONE out of the annotation or the ProxyConfig, then delete the pod",
	selection.NamespaceExcludedByLabel: "change the labels of the namespace, or exclude_namespace_selector, then delete the pod",
}

// Advice says what to do about a mesh's reason for leaving a pod alone; "" if nothing is known of a reason of a dialect's own.
func Advice(mesh string, r selection.Reason) string {
	if r == selection.NoProxy || r == selection.NotInjected {
		if how := injected[mesh]; how != "" {
			return how + ", see that its injector runs, then delete the pod so that it is injected"
		}
		return "see that the mesh's injector runs and that the pod is chosen for it, then delete the pod"
	}
	return advice[r]
}

// untouched are the reasons of a mesh that the pod has nothing to do with.
var untouched = []selection.Reason{selection.NoProxy, selection.NotInjected, selection.NotEnabled}

// Verdict sums up the explanation.
func (x Explanation) Verdict() Verdict {
	v := Verdict{Because: []string{}, Do: []string{}, Past: []Past{}}
	switch {
	case x.Refused != nil:
		v.State, v.Mesh, v.Headline = Refused, x.Dialect, "This pod would not start: its settings are wrong"
		v.Because = x.Refused
		v.Do = append(v.Do, "correct what is named above in the pod's template; a pod that cannot be captured as it asks does not start uncaptured")
	case x.Decision.Selected:
		v.State, v.Mesh, v.Headline = Captured, x.Dialect, "This pod is captured: its connections go through "+Title(x.Dialect)
		v.Because = append(v.Because, x.Decision.Detail)
		v.past(x)
		if len(v.Past) > 0 {
			v.Headline += ", but not all of them"
		}
	default:
		v.State, v.Headline = Outside, "This pod is not captured: its connections do not go through a mesh"
		v.outside(x)
	}
	return v
}

// outside explains by the meshes that have seen the pod; by all of them if none has.
func (v *Verdict) outside(x Explanation) {
	answers := x.Answers
	if len(answers) == 0 {
		answers = []dialect.Answer{{Dialect: x.Dialect, Decision: x.Decision}}
	}
	concerned := slices.DeleteFunc(slices.Clone(answers), func(a dialect.Answer) bool { return slices.Contains(untouched, a.Reason) })
	if len(concerned) > 0 {
		answers = concerned
	} else if len(answers) > 1 {
		v.untouched(answers)
		return
	}
	for _, a := range answers {
		because, do := a.Detail, Advice(a.Dialect, a.Reason)
		if len(answers) > 1 {
			because = Title(a.Dialect) + ": " + because
		}
		if !slices.Contains(v.Because, because) {
			v.Because = append(v.Because, because)
		}
		if len(answers) > 1 && do != "" {
			do = fmt.Sprintf("for %s, %s", Title(a.Dialect), do)
		}
		if do != "" && !slices.Contains(v.Do, do) {
			v.Do = append(v.Do, do)
		}
	}
}

// untouched explains a pod of which no mesh knows, without saying the same for each.
func (v *Verdict) untouched(answers []dialect.Answer) {
	v.Because = append(v.Because, "no mesh has put its proxy into it, and no label chooses it")
	for _, a := range answers {
		if how := cmp.Or(injected[a.Dialect], advice[a.Reason]); how != "" {
			v.Do = append(v.Do, Title(a.Dialect)+": "+how)
		}
	}
	v.Do = append(v.Do, "then delete the pod: most meshes put their proxy only into new ones")
}

var closing = map[dialect.BypassCode]string{
	"ipv4":                "capture the family (Istio: ISTIO_DUAL_STACK on the proxy), or close it with uncaptured_family: drop",
	"ipv6":                "capture the family (Istio: ISTIO_DUAL_STACK on the proxy), or close it with uncaptured_family: drop",
	dialect.BypassProxyID: "give the container another runAsUser; refuse such pods with refuse_proxy_uid: true",
	dialect.BypassNetRaw:  "drop the container's capabilities (drop: [ALL]); refuse such pods with refuse_net_raw: true",
}

func (v *Verdict) past(x Explanation) {
	for _, b := range x.bypasses {
		v.Past = append(v.Past, Past{b.Code, strings.TrimSpace(b.String()), closing[b.Code]})
	}
}
