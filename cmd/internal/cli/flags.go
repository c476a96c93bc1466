package cli

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of a flag.
const (
	groupKey = "group"
	envKey   = "env"
	aloneKey = "alone"
)

// Alone declares that no flag of fs that may be without a value has one as an argument of its own.
func Alone(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) { annotate(f, aloneKey, "") })
}

// Joined returns args with a flag that may be without a value, and the word after it that is one, as the one argument that pflag
// wants. A word that the command takes for an argument stays one. It is never nil, which would mean os.Args.
func Joined(root *cobra.Command, args []string) []string {
	all := append([]string{}, args...)
	c, _, err := root.Find(args)
	if err != nil {
		return all
	}
	for i := 0; i+1 < len(all) && all[i] != "--"; i++ {
		name, long := strings.CutPrefix(all[i], "--")
		f := c.Flag(name)
		switch {
		case !long || f == nil:
		case f.NoOptDefVal == "":
			i++ // the next is its value, whatever it looks like
		case f.Annotations[aloneKey] == nil && isValue(f, all[i+1]) && c.ValidateArgs(all[i+1:i+2]) != nil:
			all[i] += "=" + all[i+1]
			all = slices.Delete(all, i+1, i+2)
		}
	}
	return all
}

func isValue(f *pflag.Flag, word string) bool {
	values := strings.Split(f.Value.Type(), "|")
	if f.Value.Type() == "bool" {
		values = []string{"true", "false"}
	}
	return slices.Contains(values, word)
}

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

// BindEnv gives each flag of fs its environment variables: prefix with the flag's
// name in upper snake case, then those in also.
func BindEnv(fs *pflag.FlagSet, prefix string, also map[string][]string) {
	fs.VisitAll(func(f *pflag.Flag) {
		own := prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		annotate(f, envKey, append([]string{own}, also[f.Name]...)...)
	})
}

// Variables returns the flag's environment variables. The first that is set counts.
func Variables(f *pflag.Flag) []string { return f.Annotations[envKey] }

// Source returns the value of a flag and its origin, such as a variable. [Fill]
// calls it for flags that are not on the command line.
type Source func(f *pflag.Flag) (value, where string, ok bool)

// Env is a source that reads a flag's variables with lookup, which is like
// os.LookupEnv; nil finds nothing. An empty variable counts as unset.
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

// Fill sets each flag that is not on the command line from the first source that
// has it. The error lists every bad value with its origin.
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

// Text is a flag of to, a *string or an [encoding.TextUnmarshaler]. Help shows kind as the flag's type.
func Text(to any, kind string) pflag.Value { return &text{to, kind} }

type text struct {
	to   any
	kind string
}

func (t *text) Set(s string) error {
	if to, ok := t.to.(encoding.TextUnmarshaler); ok {
		return to.UnmarshalText([]byte(s))
	}
	*t.to.(*string) = s
	return nil
}

func (t *text) String() string { return fmt.Sprint(reflect.ValueOf(t.to).Elem()) }
func (t *text) Type() string   { return t.kind }

// Required is like Text and refuses an empty text, which would mean the default: not what somebody who types it wants.
func Required(to any, kind string) pflag.Value { return required{&text{to, kind}} }

type required struct{ *text }

func (r required) Set(s string) error {
	if s == "" {
		return errors.New("must not be empty")
	}
	return r.text.Set(s)
}

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

// help prints the command's description, its subcommands, and its flags by group with their defaults and variables.
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

// plain is the title for flags without a group.
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
