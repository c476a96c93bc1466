package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/selection"
)

// State answers a person's first question.
type State string

// The states.
const (
	Captured State = "captured" // the plugin captures the pod
	Outside  State = "outside"  // it leaves the pod alone
	Refused  State = "refused"  // the pod does not start
)

// Code is the kind of a verdict, for programs. It is one of [Codes], or if nobody captures the pod the reason of the mesh that has
// most to do with it, which a dialect may have added. Codes are never renamed or reused.
type Code string

// The codes beside the reasons of package selection.
const (
	CodeCaptured     Code = "captured"      // all traffic that the mesh is to have
	CodePartly       Code = "partly"        // captured, and there are ways past the mesh
	CodeRefused      Code = "refused"       // the pod's settings are wrong, or may not be
	CodeNoMesh       Code = "no-mesh"       // of several meshes none has to do with the pod
	CodeOtherDialect Code = "other-dialect" // the pod is of a mesh that the plugin is not configured for
	// CodeNamespaceUnknown: the pod's namespace decides too, and is not known. Its state is that of the pod on a node that
	// does not know them either.
	CodeNamespaceUnknown Code = "namespace-unknown"
)

// Codes lists all codes but those that a dialect adds.
var Codes = func() []Code {
	all := []Code{CodeCaptured, CodePartly, CodeRefused, CodeNoMesh, CodeOtherDialect, CodeNamespaceUnknown}
	for _, r := range selection.Reasons {
		if r != selection.Selected {
			all = append(all, Code(r))
		}
	}
	return all
}()

// Verdict is an explanation for somebody who knows none of our terms.
type Verdict struct {
	Code  Code  `json:"code"`
	State State `json:"state"`
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
	// Code is a [dialect.BypassCode], the field of the Redirect that excludes something, or a [redirect.WarningCode].
	Code string `json:"code"`
	What string `json:"what"`
	Do   string `json:"do"`
}

// untouched are the reasons of a mesh that the pod has nothing to do with, unless somebody has asked the mesh for it.
var untouched = []selection.Reason{selection.NoProxy, selection.NotInjected, selection.NotEnabled}

// verdict sums up the plan. Err is what [Target.Ask] has returned.
func (t *Target) verdict(l dialect.List, err error) Verdict {
	v := Verdict{Because: []string{}, Do: []string{}, Past: []Notice{}, Excluded: []Notice{}, Warnings: t.warned()}
	switch {
	case err != nil:
		v.Code, v.State, v.Mesh = CodeRefused, Refused, t.Plan.Dialect
		t.refused(&v, err)
	case t.Decision.Selected:
		v.Code, v.State, v.Mesh = CodeCaptured, Captured, t.Plan.Dialect
		v.Sentence = "The plugin captures this pod: its connections go through " + Title(v.Mesh)
		v.Past, v.Excluded = t.past(), t.excluded()
		sure := slices.ContainsFunc(t.Bypasses, func(b dialect.Bypass) bool { return !b.Unsure && !b.ByDefault() })
		switch {
		case sure:
			v.Code = CodePartly
			v.Sentence += ", but not all of them"
		case len(v.Past) > 0:
			v.Sentence += ", though some may get past it"
		}
		v.Sentence += "."
	default:
		v.State = Outside
		t.outside(&v, l)
	}
	return v
}

// outside explains by the meshes that the pod has to do with; by all of them if it has to do with none.
func (t *Target) outside(v *Verdict, l dialect.List) {
	answers := t.Answers
	if len(answers) == 0 {
		answers = []dialect.Answer{{Dialect: l.String(), Decision: t.Decision}}
	}
	all := make([]about, len(answers))
	for i, a := range answers {
		all[i] = t.about(l.Named(a.Dialect), a)
	}
	concerned := slices.DeleteFunc(slices.Clone(all), func(a about) bool {
		found := a.asks(a.pod, a.namespace)
		return slices.Contains(untouched, a.Reason) && !found.yes && !found.no
	})
	switch {
	case !slices.ContainsFunc(concerned, func(a about) bool { return !slices.Contains(untouched, a.Reason) }) && t.otherDialect(v, l):
		return // whatever its namespace asks for, another mesh's proxy is there
	case len(concerned) > 0:
		all = concerned
	case len(all) > 1:
		t.noMesh(v, all)
		return
	}
	v.Code = Code(all[0].Reason)
	lead := "This pod is not captured, because "
	for i, a := range all {
		x := a.explain()
		if i == 0 {
			if x.aside {
				lead = "The plugin leaves this pod alone, because "
			}
			v.Sentence, v.Do = lead+x.because+".", append(v.Do, x.do...)
			continue
		}
		if x.because == all[0].explain().because {
			continue // such as the host's network, which is the same to all
		}
		v.Because = append(v.Because, Title(a.name)+": "+x.because)
		for _, do := range x.do {
			if do = "For " + Title(a.name) + ": " + do; !slices.Contains(v.Do, do) {
				v.Do = append(v.Do, do)
			}
		}
	}
}

func (t *Target) about(d *dialect.Dialect, a dialect.Answer) about {
	return about{mesh: meshOf(a.Dialect, d), name: a.Dialect, dialect: d, pod: t.Pod, namespace: t.namespace, template: t.Template, Decision: a.Decision}
}

// otherDialect looks whether the pod is of a mesh that was not asked.
func (t *Target) otherDialect(v *Verdict, l dialect.List) bool {
	for _, d := range t.Known {
		if decision := d.Decide(t.Pod, t.namespace); l.Named(d.Name) != nil || !decision.Selected || decision.Err != nil {
			continue
		}
		v.Code = CodeOtherDialect
		v.Sentence = fmt.Sprintf("This pod is not captured, because it is of the mesh %s, and the plugin is configured for %s only.", Title(d.Name), titles(l))
		v.Do = append(v.Do, fmt.Sprintf("Add %s to the plugin's dialect (dialect in the chart's values): [%s]", d.Name, strings.Join(append(l.Names(), d.Name), ", ")), Then(inForce, t.Pod))
		return true
	}
	return false
}

func titles(l dialect.List) string {
	var all []string
	for _, name := range l.Names() {
		all = append(all, Title(name))
	}
	return strings.Join(all, " and ")
}

// noMesh explains a pod of which no mesh knows, without saying the same for each.
func (t *Target) noMesh(v *Verdict, all []about) {
	v.Code = CodeNoMesh
	v.Sentence = "This pod is not captured, because no mesh has put its proxy into it, and nothing asks for one."
	if t.namespace == nil {
		v.Sentence = "This pod is not captured, because no mesh has put its proxy into it; whether its namespace asks for one is not known here."
	}
	if do := all[0].bySystem(); do != nil {
		v.Do = do
		return
	}
	for _, a := range all {
		if how := a.join(a.pod, asked{}); how != "" {
			v.Do = append(v.Do, "To have it in "+Title(a.name)+": "+how)
		}
	}
	v.Do = append(v.Do, Then("Then", t.Pod))
}

// Print writes the verdict for people: the sentence, what to do, and what else is to be known.
func (v Verdict) Print(w *visible.Printer) {
	w.Printf("%s\n", v.Sentence)
	for _, because := range v.Because {
		w.Printf("  %s\n", because)
	}
	PrintDo(w, v.Do)
	for _, n := range v.Past {
		w.Printf("  past the mesh: %s\n    to close it: %s\n", n.What, n.Do)
	}
	for _, n := range v.Excluded { // what is meant needs no remedy
		w.Printf("  left out: %s\n", n.What)
	}
	for _, n := range v.Warnings {
		w.Printf("  warning: %s\n    what helps: %s\n", n.What, n.Do)
	}
}

// PrintDo writes what to do, a line each.
func PrintDo(w *visible.Printer, do []string) {
	if len(do) > 0 {
		w.Printf("What to do:\n")
	}
	for _, line := range do {
		w.Printf("  - %s\n", line)
	}
}
