package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/program/remedy"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/status"
)

// Verdict is an explanation for somebody who knows none of our terms.
type Verdict struct {
	// Code sums it up: "captured", [status.CodePartly] or what is declared beside it, or if nobody captures the pod the reason of the mesh that
	// has most to do with it.
	Code  status.Code  `json:"code"`
	State status.State `json:"state"`
	// Mesh is whose the pod is; empty if it is nobody's.
	Mesh string `json:"mesh,omitempty"`
	// Sentence describes the pod's fate, with the cause.
	Sentence string `json:"sentence"`
	// Because says more of why, where a sentence is not enough, and Do what to do about it, in order.
	Because []string `json:"because"`
	Do      []string `json:"do"`
	// Past are the ways that traffic of a captured pod has past the mesh, Excluded those that the pod's own settings ask for, and
	// Warnings its settings that were ignored or tolerated.
	Past     []Notice `json:"past"`
	Excluded []Notice `json:"excluded"`
	Warnings []Notice `json:"warnings"`
}

// Notice is something about a pod, and what to do about it.
type Notice struct {
	// Code is a [dialect.BypassCode], the field of the Redirect that excludes something, or a [warning.Code].
	Code string `json:"code"`
	What string `json:"what"`
	Do   string `json:"do"`
}

// untouched are the reasons of a mesh that the pod has nothing to do with, unless somebody has asked the mesh for it.
var untouched = []status.Code{status.CodeNoProxy, status.CodeNotInjected, status.CodeNotEnabled}

// verdict sums up the plan.
func (x Explanation) verdict() Verdict {
	v := Verdict{Because: []string{}, Do: []string{}, Past: []Notice{}, Excluded: []Notice{}, Warnings: x.warned()}
	switch {
	case x.err != nil:
		v.Code, v.State, v.Mesh = status.CodeRefused, status.StateRefused, x.Plan.Dialect
		x.refused(&v)
	case x.Plan.Decision.Selected:
		v.Mesh = x.Plan.Dialect
		v.Past, v.Excluded = x.past(), x.excluded()
		v.State, v.Code = x.Plan.State()
		x.captured(&v)
	default:
		v.State = status.StateOutside
		x.outside(&v)
	}
	return v
}

// captured writes into the verdict the part of a pod's connections that goes through its mesh.
func (x Explanation) captured(v *Verdict) {
	title := x.facts.Title(v.Mesh)
	switch {
	case v.Code == status.CodeNothingCaptured:
		row, _ := status.Lookup(status.KindDecision, v.Code)
		v.Sentence = "Nothing of this pod is captured, though it is in the mesh: its settings leave out every connection, so none goes through " + title + "."
		v.Do = append(v.Do, string(row.Do[0]), remedy.Then("Then", x.Subject.Pod))
		return
	case v.Code == status.CodeProxyMissing:
		lacking := x.lacking()
		v.Sentence = "The plugin captures this pod though " + lacking.because + ": as nothing listens where its connections go, they are refused."
		v.Do = append(v.Do, lacking.do...)
		return
	case slices.Contains(x.Plan.BypassCodes(), dialect.BypassSandboxed):
		v.Sentence = "The plugin sets this pod's rules, but its runtime takes its connections past them and past " + title
	case v.Code == status.CodePartly:
		v.Sentence = "The plugin captures this pod in part: its connections go through " + title + ", but no " + x.leftOut() + " ones"
	default:
		v.Sentence = "The plugin captures this pod: its connections go through " + title
		sure := slices.ContainsFunc(x.Plan.Bypasses, func(b dialect.Bypass) bool { return !b.Unsure && !b.ByDefault() })
		switch {
		case sure:
			v.Code = status.CodePartly
			v.Sentence += ", but not all of them"
		case len(v.Past) > 0:
			v.Sentence += ", though some may get past it"
		}
	}
	v.Sentence += "."
}

// lacking explains a pod that is to have a proxy, and has none.
func (x Explanation) lacking() explained {
	return x.about(x.meshes.Lookup(x.Plan.Dialect), dialect.Answer{Dialect: x.Plan.Dialect, Decision: x.Plan.Decision}).noProxy()
}

// leftOut names the directions of which no connection is captured.
func (x Explanation) leftOut() string {
	var all []string
	for _, b := range x.Plan.Bypasses {
		switch {
		case b.Unsure || b.Code != dialect.BypassInbound && b.Code != dialect.BypassOutbound:
		case b.Family != 0:
			all = append(all, b.Family.String()+" "+string(b.Code))
		default:
			all = append(all, string(b.Code))
		}
	}
	return strings.Join(all, " and no ")
}

// outside explains by the meshes that the pod has to do with; by all of them if it has to do with none.
func (x Explanation) outside(v *Verdict) {
	answers := x.Plan.Answers
	if len(answers) == 0 {
		answers = []dialect.Answer{{Dialect: x.meshes.String(), Decision: x.Plan.Decision}}
	}
	all := make([]about, len(answers))
	for i, a := range answers {
		all[i] = x.about(x.meshes.Lookup(a.Dialect), a)
	}
	concerned := slices.DeleteFunc(slices.Clone(all), func(a about) bool {
		found := a.Injection.Asks(a.pod, a.namespace)
		return slices.Contains(untouched, a.Reason) && found.Answer == mesh.Unknown
	})
	switch {
	case !slices.ContainsFunc(concerned, func(a about) bool { return !slices.Contains(untouched, a.Reason) }) && x.otherDialect(v):
		return // whatever its namespace asks for, another mesh's proxy is there
	case len(concerned) > 0:
		all = concerned
	case len(all) > 1:
		x.noMesh(v, all)
		return
	}
	v.Code = all[0].Reason
	lead := "This pod is not captured, because "
	for i, a := range all {
		e := a.explain()
		if i == 0 {
			if e.aside {
				lead = "The plugin leaves this pod alone, because "
			}
			v.Sentence, v.Do = lead+e.because+".", append(v.Do, e.do...)
			continue
		}
		if e.because == all[0].explain().because {
			continue // such as the host's network, which is the same to all
		}
		v.Because = append(v.Because, a.Title+": "+e.because)
		for _, do := range e.do {
			if do = "For " + a.Title + ": " + do; !slices.Contains(v.Do, do) {
				v.Do = append(v.Do, do)
			}
		}
	}
}

func (x Explanation) about(d *dialect.Dialect, a dialect.Answer) about {
	return about{Facts: x.facts.Of(a.Dialect, d), name: a.Dialect, dialect: d, pod: x.Subject.Pod, namespace: x.Subject.Namespace, online: x.online, template: x.template, Decision: a.Decision, product: x.identity}
}

// otherDialect looks whether the pod is of a mesh that was not asked.
func (x Explanation) otherDialect(v *Verdict) bool {
	for _, d := range x.meshes.Known() {
		if decision := d.Decide(x.Subject.Pod, x.Subject.Namespace); x.meshes.Lookup(d.Name) != nil || !decision.Selected || decision.Err != nil {
			continue
		}
		v.Code = statuscode.OtherDialect
		v.Sentence = fmt.Sprintf("This pod is not captured, because it is of the mesh %s, and the plugin is configured for %s only.", x.facts.Title(d.Name), x.titles(x.meshes.Names()))
		v.Do = append(v.Do, fmt.Sprintf("Add %s to the plugin's dialect (dialect in the chart's values): [%s]", d.Name, strings.Join(append(x.meshes.Names(), d.Name), ", ")), remedy.Then(inForce, x.Subject.Pod))
		return true
	}
	return false
}

func (x Explanation) titles(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, x.facts.Title(name))
	}
	return strings.Join(all, " and ")
}

// noMesh explains a pod of which no mesh knows, without saying the same for each.
func (x Explanation) noMesh(v *Verdict, all []about) {
	v.Code = status.CodeNoMesh
	v.Sentence = "This pod is not captured, because no mesh has put its proxy into it, and nothing asks for one."
	if x.Subject.Namespace == nil {
		v.Sentence = "This pod is not captured, because no mesh has put its proxy into it; whether its namespace asks for one is not known here."
	}
	if do := all[0].bySystem(); do != nil {
		v.Do = do
		return
	}
	for _, a := range all {
		if how := a.join(a.pod, mesh.Asked{}); how != "" {
			v.Do = append(v.Do, "To have it in "+a.Title+": "+how)
		}
	}
	v.Do = append(v.Do, remedy.Then("Then", x.Subject.Pod))
}
