package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Prefix begins the variables of the agents' flags.
const Prefix = "MESHCNI_"

// Annotations of a flag.
const (
	groupKey = "group"
	envKey   = "env"
)

// Group declares flags that help lists together, in the order of declaration.
func Group(fs *pflag.FlagSet, title string, declare func(*pflag.FlagSet)) {
	group := pflag.NewFlagSet(title, pflag.ContinueOnError)
	group.SortFlags = false
	declare(group)
	group.VisitAll(func(f *pflag.Flag) { annotate(f, groupKey, title) })
	fs.AddFlagSet(group)
}

func annotate(f *pflag.Flag, key string, values ...string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = values
}

// BindEnv gives each flag of fs its environment forms: prefix and its name in
// upper snake case, then those that also has for it.
func BindEnv(fs *pflag.FlagSet, prefix string, also map[string][]string) {
	fs.VisitAll(func(f *pflag.Flag) {
		own := prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		annotate(f, envKey, append([]string{own}, also[f.Name]...)...)
	})
}

// Variables are the flag's environment forms, the first to be set counts.
func Variables(f *pflag.Flag) []string { return f.Annotations[envKey] }

// Source finds out what a flag is set to, and where: a variable, say. [Fill]
// asks it for flags that were not typed.
type Source func(f *pflag.Flag) (value, where string, ok bool)

// Env reads the variables of a flag; an empty one counts as unset. Lookup is
// as os.LookupEnv; nil finds nothing.
func Env(lookup func(name string) (string, bool)) Source {
	return func(f *pflag.Flag) (value, where string, ok bool) {
		for _, name := range Variables(f) {
			if lookup == nil {
				break
			}
			if v, ok := lookup(name); ok && v != "" {
				return v, name, true
			}
		}
		return "", "", false
	}
}

// Fill sets each flag that was not typed from the first source that has it.
// The error has every value that a flag refuses, with where it came from.
func Fill(fs *pflag.FlagSet, sources ...Source) error {
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		for _, source := range sources {
			value, where, ok := source(f)
			if !ok {
				continue
			}
			if err := f.Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("%s=%q: %w", where, value, err))
			}
			return
		}
	})
	return errors.Join(errs...)
}

// String is a flag for text; kind says in help what the text is.
func String(to *string, kind string) pflag.Value { return &text{to, kind} }

type text struct {
	to   *string
	kind string
}

func (t *text) Set(s string) error { *t.to = s; return nil }
func (t *text) String() string     { return *t.to }
func (t *text) Type() string       { return t.kind }

// Required is a flag for text that refuses to be empty. An empty text would
// mean the default, which is not what somebody who types it wants.
func Required(to *string, kind string) pflag.Value {
	return Reads(String(to, kind), func(s []byte) error {
		if len(s) == 0 {
			return errors.New("must not be empty")
		}
		*to = string(s)
		return nil
	})
}

// Reads is the flag v, set by the UnmarshalText of what it is for: it refuses
// what that refuses.
func Reads(v pflag.Value, unmarshalText func([]byte) error) pflag.Value {
	return reads{v, unmarshalText}
}

type reads struct {
	pflag.Value
	unmarshalText func([]byte) error
}

func (r reads) Set(s string) error { return r.unmarshalText([]byte(s)) }

// List is a flag for several items: separated by commas, or the flag repeated.
// Empty and repeated items are dropped. The first use replaces the default.
func List(to *[]string, kind string) pflag.Value { return &list{to: to, kind: kind} }

type list struct {
	to   *[]string
	kind string
	set  bool
}

func (l *list) Set(s string) error {
	if !l.set {
		*l.to, l.set = nil, true
	}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" && !slices.Contains(*l.to, item) {
			*l.to = append(*l.to, item)
		}
	}
	return nil
}

func (l *list) String() string { return strings.Join(*l.to, ",") }
func (l *list) Type() string   { return l.kind }

// Choice is a flag for one of several words; the first is the default.
func Choice(to *string, words ...string) pflag.Value {
	*to = words[0]
	return &choice{text{to, "string"}, words}
}

type choice struct {
	text
	words []string
}

func (c *choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("not one of %s", strings.Join(c.words, ", "))
	}
	return c.text.Set(s)
}

// help prints a command: what it does, the commands below it, and its flags by
// group, each with its default and its variables.
func help(c *cobra.Command, _ []string) {
	w := c.OutOrStdout()
	fmt.Fprintf(w, "%s: %s\n\nUsage:\n  %s\n", c.CommandPath(), c.Short, c.UseLine())
	if c.Long != "" {
		fmt.Fprintf(w, "\n%s\n", c.Long)
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprint(w, "\nCommands:\n")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(w, "  %-*s  %s\n", c.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	titles, groups := []string{plain}, map[string][]*pflag.Flag{}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		title := plain
		if g := f.Annotations[groupKey]; len(g) > 0 {
			title = g[0]
		}
		if !slices.Contains(titles, title) {
			titles = append(titles, title)
		}
		groups[title] = append(groups[title], f)
	})
	for _, title := range titles {
		if len(groups[title]) > 0 {
			fmt.Fprintf(w, "\n%s:\n", title)
		}
		for _, f := range groups[title] {
			printFlag(w, f)
		}
	}
}

// plain is the group of flags that are in none.
const plain = "Flags"

func printFlag(w io.Writer, f *pflag.Flag) {
	kind, usage := pflag.UnquoteUsage(f)
	head := "--" + f.Name
	if f.Shorthand != "" {
		head = "-" + f.Shorthand + ", " + head
	}
	fmt.Fprintf(w, "  %s\n        %s", strings.TrimSpace(head+" "+kind), usage)
	if zero := []string{"", "0", "0s", "[]"}; !slices.Contains(zero, f.DefValue) && (f.Value.Type() != "bool" || f.DefValue != "false") {
		fmt.Fprintf(w, " (default %s)", f.DefValue)
	}
	if env := Variables(f); len(env) > 0 {
		fmt.Fprintf(w, "\n        %s", strings.Join(env, " or "))
	}
	fmt.Fprintln(w)
}
