//go:build linux

package nodecmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagValue only collects: the meaning is given when all sources are known.
type flagValue struct {
	kind, def string
	repeats   bool
	values    []string
}

func (f *flagValue) Type() string   { return f.kind }
func (f *flagValue) String() string { return f.def }
func (f *flagValue) Set(v string) error {
	if !f.repeats {
		f.values = nil
	}
	f.values = append(f.values, v)
	return nil
}

func addFlags(c *cobra.Command) {
	c.Flags().SortFlags = false
	d := defaults()
	for _, o := range options {
		f := &flagValue{kind: o.kind, def: o.get(&d), repeats: o.name == "cni-bin-dir" || o.name == "exclude-namespaces"}
		added := c.Flags().VarPF(f, o.name, "", o.usage)
		if o.kind == "bool" || o.name == "uninstall-on-exit" {
			added.NoOptDefVal = "true"
		}
	}
	c.SetHelpFunc(func(c *cobra.Command, _ []string) { help(c) })
}

// changed are the flags that were typed.
func changed(c *cobra.Command) map[string]string {
	out := map[string]string{}
	c.Flags().Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*flagValue); ok {
			out[f.Name] = strings.Join(v.values, ",")
		}
	})
	return out
}

// help lists the flags by group, each with its environment form.
func help(c *cobra.Command) {
	w := c.OutOrStdout()
	fmt.Fprintf(w, "%s: %s\n\n  %s [flags]\n", c.CommandPath(), c.Short, c.CommandPath())
	if f := c.Flags().Lookup("once"); f != nil {
		fmt.Fprintf(w, "\n  --once\n        %s\n", f.Usage)
	}
	d := defaults()
	group := ""
	for _, o := range options {
		if o.group != group {
			group = o.group
			fmt.Fprintf(w, "\n%s:\n", group)
		}
		fmt.Fprintf(w, "  --%s %s\n        %s", o.name, o.kind, o.usage)
		if def := o.get(&d); def != "" {
			fmt.Fprintf(w, " (default %s)", def)
		}
		fmt.Fprintf(w, "\n        %s", o.envName())
		if o.env != "" {
			fmt.Fprintf(w, " or %s", o.env)
		}
		fmt.Fprintln(w)
	}
}
