package explain

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// Explanation is the output of explain, as JSON or in words.
type Explanation struct {
	Pod PodName `json:"pod"`
	// Verdict says all of it to somebody who knows none of our terms.
	Verdict Verdict `json:"verdict"`
	// Dialect is the mesh that has the pod; if none has, all that were asked, separated by commas.
	Dialect string `json:"dialect"`
	// Answers are the decisions of several meshes, in order.
	Answers []dialect.Answer `json:"answers,omitempty"`
	// Configuration is the origin of the dialect and the other settings of the plugin.
	Configuration Configuration      `json:"configuration"`
	Decision      selection.Decision `json:"decision"`
	// Refused lists the pod's invalid settings.
	Refused []string `json:"refused,omitempty"`
	// Bypasses describes how traffic of the pod can bypass the mesh. BypassCodes
	// are the codes for them in the plugin's record.
	Bypasses    []string             `json:"bypasses"`
	BypassCodes []dialect.BypassCode `json:"bypassCodes"`
	Warnings    []string             `json:"warnings"`
	Redirect    *redirect.Redirect   `json:"redirect,omitempty"`
	Settings    []Setting            `json:"settings,omitempty"`
	Packets     []Fate               `json:"packets,omitempty"`
	Rules       *ruleset.Ruleset     `json:"rules,omitempty"`
}

// Name returns the pod's name.
func Name(pod *corev1.Pod) PodName { return PodName{pod.Namespace, pod.Name} }

// PodName names a pod.
type PodName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Setting is a field of the Redirect and its origin.
type Setting struct {
	Field string `json:"field"`
	// Value is the value in effect. From holds what the pod says.
	Value json.RawMessage `json:"value,omitempty"`
	From  redirect.Origin `json:"from"`
}

// Meshes names the mesh that has the pod, or else all that were asked.
func (t *Target) Meshes(asked dialect.List) string { return cmp.Or(t.Plan.Dialect, asked.String()) }

// Explain puts the target's plan into words. Err is what [Target.Ask] returned. It is returned again if no decision was
// reached; otherwise it is in Refused.
func (t *Target) Explain(asked dialect.List, c Configuration, err error) (Explanation, error) {
	x := Explanation{
		Pod: Name(t.Pod), Dialect: t.Meshes(asked), Answers: t.Answers, Configuration: c, Decision: t.Decision,
		Bypasses: []string{}, BypassCodes: append([]dialect.BypassCode{}, t.Codes()...), Warnings: append([]string{}, t.Notes...),
	}
	for _, b := range t.Bypasses {
		x.Bypasses = append(x.Bypasses, b.String())
	}
	switch {
	case err != nil && t.Decision.Reason == "":
		return x, err
	case err != nil:
		x.Refused = Reasons(err)
	case t.Decision.Selected:
		x.Redirect, x.Rules = &t.Redirect, &t.Ruleset
		x.Settings = settings(t.Redirect, t.Origins)
		x.Packets = t.Typical()
	}
	x.Verdict = t.verdict(asked, err)
	return x, nil
}

// Reasons returns the parts of a joined error, without the text that wraps them.
func Reasons(err error) []string {
	var all []string
	for _, part := range parts(err) {
		all = append(all, part.Error())
	}
	return all
}

func parts(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			var all []error
			for _, part := range joined.Unwrap() {
				all = append(all, parts(part)...)
			}
			return all
		}
	}
	return []error{err}
}

// settings finds the value of each field by its path in JSON.
func settings(r redirect.Redirect, origins []redirect.Origin) []Setting {
	b, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	var out []Setting
	for _, o := range origins {
		if o.Field == "" {
			continue // validated, but sets no field
		}
		out = append(out, Setting{Field: o.Field, Value: lookupJSON(b, o.Field), From: o})
	}
	return out
}

func lookupJSON(b json.RawMessage, path string) json.RawMessage {
	head, rest, more := strings.Cut(path, ".")
	var fields map[string]json.RawMessage
	if json.Unmarshal(b, &fields) != nil {
		return nil
	}
	if more {
		return lookupJSON(fields[head], rest)
	}
	return fields[head]
}

// words is a setting's value for people.
func (s Setting) words() string {
	v := strings.TrimSpace(string(s.Value))
	switch {
	case v == "" && s.Field == "dropInvalid":
		return "false" // omitted from JSON when it is not set
	case v == "", v == "null", v == "[]":
		return "none"
	}
	return strings.Trim(strings.NewReplacer(`"`, "", ",", ", ").Replace(v), "[]")
}

func (s Setting) from() string {
	if s.From.Source == redirect.FromDefault {
		return "default"
	}
	return fmt.Sprintf("%s %s=%q", s.From.Source, s.From.Key, s.From.Value)
}

// Print writes the explanation for people: first the verdict, then all of it.
func (x Explanation) Print(w *visible.Printer) error {
	x.Verdict.Print(w)
	w.Printf("\n")
	return x.PrintPlan(w)
}

// PrintPlan writes all but the verdict, which also says why a pod is refused.
func (x Explanation) PrintPlan(w *visible.Printer) error {
	in := "is not in the mesh"
	switch {
	case x.Refused != nil:
		in = "is refused"
	case x.Decision.Selected:
		in = "is in the mesh"
	}
	w.Printf("pod %s/%s %s (%s)\n", x.Pod.Namespace, x.Pod.Name, in, x.Dialect)
	if x.Decision.Selected || len(x.Answers) == 0 { // else the answers say it all
		w.Printf("  %s: %s\n", x.Decision.Reason, x.Decision.Detail)
	}
	for _, a := range x.Answers {
		w.Printf("  dialect %s: %s: %s\n", a.Dialect, a.Reason, a.Detail)
	}
	w.Printf("  %s\n", x.Configuration)
	for _, b := range x.Bypasses {
		if slices.ContainsFunc(x.Refused, func(r string) bool { return strings.HasPrefix(r, b) }) {
			continue // the verdict has it
		}
		w.Printf("  WARNING: %s\n", b)
	}
	for _, m := range x.Warnings {
		w.Printf("  warning: %s\n", m)
	}
	if x.Redirect == nil {
		return w.Err()
	}
	w.Printf("\nsettings\n")
	table := w.Table()
	for _, s := range x.Settings {
		table.Printf("  %s\t%s\t%s\n", s.Field, s.words(), s.from())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	w.Printf("\ntypical packets\n")
	table = w.Table()
	for _, f := range x.Packets {
		verdict, why := "unknown", f.Error
		if f.Result != nil {
			verdict, why = f.Result.String(), f.Result.Reason
		}
		table.Printf("  %s\t%s\t%s\t%s\n", f.What, f.line(), verdict, why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, f := range ruleset.Families {
		p := x.Rules.Program(f)
		if p == nil {
			w.Printf("\n%s: no rules\n", f)
			continue
		}
		w.Printf("\n%s: %d rules\n", f, p.Rules())
		w.Text(indent(p.Commented()))
	}
	return w.Err()
}

func indent(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		b.WriteString("  " + l)
	}
	return b.String()
}

// RulesText returns the input of iptables-restore --noflush and ip6tables-restore --noflush, with comments. A comment
// line heads each family if there are two.
func RulesText(rs ruleset.Ruleset) string {
	if rs.IPv4 == nil || rs.IPv6 == nil {
		return rs.IPv4.Commented() + rs.IPv6.Commented()
	}
	var b strings.Builder
	for _, f := range ruleset.Families {
		b.WriteString("# " + f.String() + "\n" + rs.Program(f).Commented())
	}
	return b.String()
}
