package redirectcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

func (p Program) explainCommand() *cobra.Command {
	var output string
	cmd, _ := p.newCommand("explain -f pod.yaml", "Say whether the pod is in the mesh, why, where each setting comes from, and what the rules are",
		func(c *common, cmd *cobra.Command) error { return runExplain(cmd.Context(), c, output) })
	cmd.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

// explanation is what explain prints, as JSON or in words.
type explanation struct {
	Pod podName `json:"pod"`
	// Dialect is the mesh that has the pod; if none has, all that were asked, separated by commas.
	Dialect string `json:"dialect"`
	// Answers are what each of several meshes says, in order.
	Answers []dialect.Answer `json:"answers,omitempty"`
	// Configuration says where the dialect and the other settings of the plugin come from.
	Configuration configuration      `json:"configuration"`
	Decision      selection.Decision `json:"decision"`
	// Refused lists the pod's invalid settings.
	Refused []string `json:"refused,omitempty"`
	// Bypasses describes how traffic of the pod can bypass the mesh. BypassCodes
	// are the codes for them in the plugin's record.
	Bypasses    []string             `json:"bypasses"`
	BypassCodes []dialect.BypassCode `json:"bypassCodes"`
	Warnings    []string             `json:"warnings"`
	Redirect    *redirect.Redirect   `json:"redirect,omitempty"`
	Settings    []setting            `json:"settings,omitempty"`
	Packets     []fate               `json:"packets,omitempty"`
	Rules       *ruleset.Ruleset     `json:"rules,omitempty"`
}

type podName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// setting is a field of the Redirect and its origin.
type setting struct {
	Field string `json:"field"`
	// Value is the value in effect. From holds what the pod says.
	Value json.RawMessage `json:"value,omitempty"`
	From  redirect.Origin `json:"from"`
}

// dialect names the mesh that has the pod, or else all that were asked.
func (t *target) dialect(asked dialect.List) string { return cmp.Or(t.Plan.Dialect, asked.String()) }

func runExplain(ctx context.Context, c *common, output string) error {
	t, err := c.target(ctx, nil)
	if t.pod == nil {
		return err
	}
	x := explanation{
		Pod: podName{t.pod.Namespace, t.pod.Name}, Dialect: t.dialect(c.dialects), Answers: t.Answers, Configuration: c.config, Decision: t.Decision,
		Bypasses: []string{}, BypassCodes: append([]dialect.BypassCode{}, t.Codes()...), Warnings: append([]string{}, t.warnings...),
	}
	for _, b := range t.Bypasses {
		x.Bypasses = append(x.Bypasses, b.String())
	}
	switch {
	case err != nil && t.Decision.Reason == "":
		return err // no decision was reached: a file cannot be read, say
	case err != nil:
		x.Refused = reasons(err)
	case t.Decision.Selected:
		x.Redirect, x.Rules = &t.Redirect, &t.Ruleset
		x.Settings = settings(t.Redirect, t.Origins)
		x.Packets = t.typical()
	}
	if output == "json" {
		err = printJSON(c.Stdout, x)
	} else {
		err = x.print(c.Stdout)
	}
	if err == nil && x.Refused != nil {
		return errSilent
	}
	return err
}

// reasons returns the parts of a joined error, without the text that wraps them.
func reasons(err error) []string {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			var all []string
			for _, part := range joined.Unwrap() {
				all = append(all, reasons(part)...)
			}
			return all
		}
	}
	return []string{err.Error()}
}

// settings finds the value of each field by its path in JSON.
func settings(r redirect.Redirect, origins []redirect.Origin) []setting {
	b, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	var out []setting
	for _, o := range origins {
		if o.Field == "" {
			continue // validated, but sets no field
		}
		out = append(out, setting{Field: o.Field, Value: lookupJSON(b, o.Field), From: o})
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
func (s setting) words() string {
	v := strings.TrimSpace(string(s.Value))
	switch {
	case v == "" && s.Field == "dropInvalid":
		return "false" // omitted from JSON when it is not set
	case v == "", v == "null", v == "[]":
		return "none"
	}
	return strings.Trim(strings.NewReplacer(`"`, "", ",", ", ").Replace(v), "[]")
}

func (s setting) from() string {
	if s.From.Source == redirect.FromDefault {
		return "default"
	}
	return fmt.Sprintf("%s %s=%q", s.From.Source, s.From.Key, s.From.Value)
}

// print writes the explanation for people.
func (x explanation) print(w io.Writer) error {
	in := "is not in the mesh"
	switch {
	case x.Refused != nil:
		in = "is refused"
	case x.Decision.Selected:
		in = "is in the mesh"
	}
	fmt.Fprintf(w, "pod %s/%s %s (%s)\n", x.Pod.Namespace, x.Pod.Name, in, x.Dialect)
	if x.Decision.Selected || len(x.Answers) == 0 { // else the answers say it all
		fmt.Fprintf(w, "  %s: %s\n", x.Decision.Reason, x.Decision.Detail)
	}
	for _, a := range x.Answers {
		fmt.Fprintf(w, "  dialect %s: %s: %s\n", a.Dialect, a.Reason, a.Detail)
	}
	fmt.Fprintf(w, "  %s\n", x.Configuration)
	for _, r := range x.Refused {
		fmt.Fprintf(w, "  refused: %s\n", r)
	}
	for _, b := range x.Bypasses {
		if slices.ContainsFunc(x.Refused, func(r string) bool { return strings.HasPrefix(r, b) }) {
			continue // it has just been said
		}
		fmt.Fprintf(w, "  WARNING: %s\n", b)
	}
	for _, m := range x.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", m)
	}
	if x.Redirect == nil {
		return nil
	}
	fmt.Fprintln(w, "\nsettings")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range x.Settings {
		fmt.Fprintf(table, "  %s\t%s\t%s\n", s.Field, s.words(), s.from())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\ntypical packets")
	table = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range x.Packets {
		verdict, why := "unknown", f.Error
		if f.Result != nil {
			verdict, why = f.Result.String(), f.Result.Reason
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", f.What, f.line(), verdict, why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, f := range ruleset.Families {
		p := x.Rules.Program(f)
		if p == nil {
			fmt.Fprintf(w, "\n%s: no rules\n", f)
			continue
		}
		fmt.Fprintf(w, "\n%s: %d rules\n%s", f, p.Rules(), indent(p.Commented()))
	}
	return nil
}

func indent(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		b.WriteString("  " + l)
	}
	return b.String()
}
