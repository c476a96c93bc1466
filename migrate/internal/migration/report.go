package migration

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/text/visible"
)

// Report is the output of migrate.
type Report struct {
	// From is the other plugin's name, and Objects are those that its settings are from.
	From    string   `json:"from"`
	Objects []string `json:"objects"`
	Nodes   Nodes    `json:"nodes"`
	// Pods of the mesh were looked at, and Outside are in no mesh by the settings.
	Pods    int      `json:"pods"`
	Outside int      `json:"outside"`
	Groups  []*Group `json:"groups"`
	Plan    Plan     `json:"plan"`
}

// Nodes are the cluster's.
type Nodes struct {
	Total int `json:"total"`
	// Other are those whose network has the other plugin's entry, of those whose agents have told; Agents how many those are.
	Other  int `json:"other"`
	Agents int `json:"agents"`
	// States are those of all nodes, by their names.
	States map[string]NodeState `json:"states,omitempty"`
	// Silent lists the reasons that agents have not answered, maxNamed at most.
	Silent []string `json:"silent,omitempty"`
}

// AddSilent notes why an agent has not answered.
func (n *Nodes) AddSilent(why string) {
	if len(n.Silent) < maxNamed {
		n.Silent = append(n.Silent, why)
	}
}

// Wrong reports whether something needs a decision: a pod that is refused, that two programs have captured, or whose traffic would go
// otherwise; or a setting that changes who or what is captured and has no equal.
func (r Report) Wrong() bool {
	for _, g := range r.Groups {
		if g.Verdict == Refused || g.Verdict == Double || g.Verdict == Differs {
			return true
		}
	}
	for _, n := range r.Plan.Undone {
		if n.Rules {
			return true
		}
	}
	return false
}

// Unsure reports whether something could not be found out.
func (r Report) Unsure() bool {
	for _, g := range r.Groups {
		if g.Verdict == Unknown {
			return true
		}
	}
	return len(r.Plan.Unknown) > 0
}

// Count counts the pods that have a verdict.
func (r Report) Count(v Verdict) (n int) {
	for _, g := range r.Groups {
		if g.Verdict == v {
			n += g.Count
		}
	}
	return n
}

// Words says in one line how the pods are.
func (r Report) Words() string {
	if r.Pods == 0 {
		return "no pods of the mesh"
	}
	var parts []string
	for _, v := range verdicts {
		if n := r.Count(v); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v.Words()))
		}
	}
	return fmt.Sprintf("%d pods of the mesh: %s", r.Pods, strings.Join(parts, ", "))
}

// Words is the verdict for people.
func (v Verdict) Words() string {
	switch v {
	case Refused:
		return "would be refused"
	case Double:
		return "have rules of two programs"
	case Differs:
		return "would be captured otherwise"
	case Unknown:
		return "cannot be told"
	case Same:
		return "would be captured the same"
	}
	return "have our rules already"
}

// Words is the evidence for people.
func (e Evidence) Words() string {
	switch e {
	case Live:
		return "by the rules in the pods"
	case Model:
		return "by the settings"
	}
	return ""
}

// More counts the pods that are not named.
func (g Group) More() int { return g.Count - len(g.Pods) }

// ValuesYAML are the chart's values as a file.
func (p Plan) ValuesYAML() string {
	text, err := yaml.Marshal(p.Values)
	if err != nil {
		return "# " + visible.Line(err.Error()) + "\n" // they are maps, lists, strings, numbers and bools
	}
	return "# Values of the meshcni chart, from the settings of " + visible.Line(p.From) + ".\n" + string(text)
}

// JSON is the new form of a value.
func (k Kept) JSON() string {
	text, err := json.Marshal(k.To)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Print writes the report for people.
func (r Report) Print(w *visible.Printer) error {
	w.Printf("from %s", r.From)
	if len(r.Objects) > 0 {
		w.Printf(": %s", strings.Join(r.Objects, ", "))
	}
	w.Printf("\n%d nodes; agents of ours on %d, of which %d have the other's entry too\n%s; %d outside\n", r.Nodes.Total, r.Nodes.Agents, r.Nodes.Other, r.Words(), r.Outside)
	for _, line := range append(r.Nodes.Lines(), r.Nodes.Silent...) {
		w.Printf("%s\n", line)
	}
	for _, g := range r.Groups {
		w.Printf("\n%d %s", g.Count, g.Verdict.Words())
		if by := g.Evidence.Words(); by != "" {
			w.Printf(", %s", by)
		}
		w.Printf("\n  %s\n  pods: %s", g.Cause, strings.Join(g.Pods, ", "))
		if n := g.More(); n > 0 {
			w.Printf(" and %d more", n)
		}
		w.Printf("\n")
		for _, e := range g.Example {
			w.Printf("  such as %s\n", e)
		}
	}
	p := r.Plan
	section := func(title string, n int, each func(i int)) {
		if n == 0 {
			return
		}
		w.Printf("\n%s\n", title)
		for i := range n {
			w.Printf("  ")
			each(i)
			w.Printf("\n")
		}
	}
	note := func(n Note) { w.Printf("%s: %s", n.Setting, n.Text) }
	section("settings without an equal here: decide", len(p.Undone), func(i int) { note(p.Undone[i]) })
	section("settings that are not known: look them up", len(p.Unknown), func(i int) { w.Printf("%s", p.Unknown[i]) })
	section("settings that are kept", len(p.Kept), func(i int) { w.Printf("%s: %s: %s", p.Kept[i].Setting, p.Kept[i].Path, p.Kept[i].JSON()) })
	section("settings that need nothing", len(p.Needless), func(i int) { note(p.Needless[i]) })
	w.Printf("\nvalues\n")
	for line := range strings.Lines(p.ValuesYAML()) {
		w.Text("  " + line)
	}
	section("steps", len(p.Steps), func(i int) { w.Printf("%d. %s", i+1, p.Steps[i]) })
	return w.Err()
}

//go:embed report.html.tmpl
var page string

var html = template.Must(template.New("report").Parse(page))

// HTML writes the report as a page that asks for nothing else. Characters that do not print are escapes, as in [Report.Print]: one that
// turns the direction around does so on a page too.
func (r Report) HTML(w io.Writer) error {
	var b strings.Builder
	if err := html.Execute(&b, r); err != nil {
		return err
	}
	p := visible.To(w)
	p.Text(b.String())
	return p.Err()
}
