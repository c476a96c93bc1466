package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// WriteTo writes the explanation for people: first the verdict, then all of it.
func (x Explanation) WriteTo(w io.Writer) (int64, error) {
	out := visible.To(w)
	x.Verdict.print(out)
	out.Printf("\n")
	x.print(out)
	return out.Written(), out.Err()
}

// WriteDetails writes all but the verdict, which also says why a pod is refused.
func (x Explanation) WriteDetails(w io.Writer) error {
	out := visible.To(w)
	x.print(out)
	return out.Err()
}

func (x Explanation) print(w *visible.Printer) {
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
		return
	}
	w.Printf("\nsettings\n")
	table := w.Table()
	for _, s := range x.Settings {
		table.Printf("  %s\t%s\t%s\n", s.Field, s.words(), s.from())
	}
	_ = table.Flush() // w has the error
	w.Printf("\ntypical packets\n")
	table = w.Table()
	for _, f := range x.Packets {
		verdict, why := "unknown", f.Error
		if f.Result != nil {
			verdict, why = f.Result.String(), f.Result.Reason
		}
		table.Printf("  %s\t%s\t%s\t%s\n", f.What, f.line(), verdict, why)
	}
	_ = table.Flush() // w has the error
	for _, f := range ruleset.Families {
		p := x.Rules.Family(f)
		if p == nil {
			w.Printf("\n%s: no rules\n", f)
			continue
		}
		w.Printf("\n%s: %d rules\n", f, p.NumRules())
		w.Text(indent(commented(p)))
	}
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

// commented is the program as iptables has it, or, if that are too many rules, each of its rules with the beginning of its lists.
func commented(p *ruleset.FamilyRuleset) string {
	var rs ruleset.Ruleset
	rs.Set(p)
	if _, err := rs.Iptables(); err == nil {
		return p.Commented()
	}
	var b strings.Builder
	for _, c := range p.Chains {
		for _, r := range c.Rules {
			if r.Comment != "" {
				b.WriteString("# " + r.Comment + "\n")
			}
			b.WriteString("-t " + c.Table.String() + " -A " + c.Name + " " + r.Text(p.Family) + "\n")
		}
	}
	return b.String()
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
		b.WriteString("# " + f.String() + "\n" + rs.Family(f).Commented())
	}
	return b.String()
}

// WriteTo writes the verdict for people: the sentence, what to do, and what else is to be known.
func (v Verdict) WriteTo(w io.Writer) (int64, error) {
	out := visible.To(w)
	v.print(out)
	return out.Written(), out.Err()
}

func (v Verdict) print(w *visible.Printer) {
	w.Printf("%s\n", v.Sentence)
	for _, because := range v.Because {
		w.Printf("  %s\n", because)
	}
	if len(v.Do) > 0 {
		w.Printf("What to do:\n")
	}
	for _, do := range v.Do {
		w.Printf("  - %s\n", do)
	}
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
