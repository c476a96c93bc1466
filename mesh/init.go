package mesh

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/warning"
)

// Init is the program of an init container that writes a pod's rules. It has a function Redirect or Annotations. Neither guesses: what is
// not in the pod is an error.
type Init struct {
	// Commands are words that may stand before the flags.
	Commands []string
	// Flags are those of its command line. With none its arguments are not read.
	Flags []Flag
	// Redirect returns the rules that the program writes.
	Redirect func(InitContainer) (redirect.Redirect, error)
	// Annotations returns those by which the dialect makes the same rules. With an error it returns what is known of them.
	Annotations func(InitContainer) (map[string]string, error)
	// ForPlugin: where there is a plugin, the injector writes these annotations in place of the container.
	ForPlugin bool
}

// Flag is one of an [Init]. One without Field and Set changes no rule by itself.
type Flag struct {
	Name, Short string
	// Also are other names of the same.
	Also []string
	// Usage is for people.
	Usage string
	// Bool: the flag has a value only by an equals sign.
	Bool bool
	// List: a value is a list, separated by commas; more of them are one list. Repeated: the values are a list.
	List, Repeated bool
	// Variables count where the flag is not given; the first that is set.
	Variables []string
	// Refused names the program's other work if the flag is given, unless it is false or empty: no rules of the pod's are written then.
	Refused string
	// Field, Grammar and Set are those of a [redirect.Setting].
	Field   string
	Grammar redirect.Grammar
	Set     func(r *redirect.Redirect, value string) error
}

// Apply sets what the flag's value says in a Redirect.
func (f Flag) Apply(r *redirect.Redirect, value string) error {
	if f.Field == "" && f.Set == nil {
		return nil
	}
	return redirect.Setting{Field: f.Field, Grammar: f.Grammar, Set: f.Set}.Apply(r, value)
}

// InitContainer is a container that runs an [Init].
type InitContainer struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	// Addrs are the pod's addresses.
	Addrs []netip.Addr
	// Ours is the plan that a plugin of ours makes for the pod. Where the container cannot say whether a family has rules that the pod has no
	// address of, it counts.
	Ours redirect.Redirect

	flags []Flag
	said  map[string][]string
}

// HasIPv6 reports whether the pod has an address of IPv6.
func (c InitContainer) HasIPv6() bool {
	return slices.ContainsFunc(c.Addrs, func(a netip.Addr) bool { return ruleset.FamilyOf(a) == ruleset.IPv6 })
}

// Read returns the rules that the container writes by its arguments and variables. Dialect is the mesh's.
func (i Init) Read(d *dialect.Dialect, c InitContainer) (redirect.Redirect, error) {
	c.flags, c.said = i.Flags, map[string][]string{}
	if err := c.parse(i.Commands); err != nil {
		return redirect.Redirect{}, fmt.Errorf("arguments of the init container: %w", err)
	}
	if i.Redirect != nil {
		return i.Redirect(c)
	}
	annotations, err := i.Annotations(c)
	if err != nil {
		return redirect.Redirect{}, err
	}
	as := *c.Pod
	as.Annotations, as.Spec.InitContainers = annotations, nil
	for _, other := range c.Pod.Spec.InitContainers { // a proxy may be one of them
		if !d.Policy.SetsRules(&other) {
			as.Spec.InitContainers = append(as.Spec.InitContainers, other)
		}
	}
	r, err := d.Redirect(&as, nil, c.Addrs)
	if err != nil {
		return redirect.Redirect{}, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	for _, w := range r.Warnings {
		if w.Code == warning.Unknown {
			return redirect.Redirect{}, errors.New(w.Text)
		}
	}
	return r.Redirect, nil
}

func (c *InitContainer) parse(commands []string) error {
	if len(c.flags) == 0 {
		return nil
	}
	words := c.Container.Args
	for _, w := range words {
		if strings.Contains(w, "$(") { // which the kubelet expands
			return fmt.Errorf("%q takes a variable's value", w)
		}
	}
	for len(words) > 0 && slices.Contains(commands, words[0]) {
		words = words[1:]
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	for _, f := range c.flags {
		note := func(value string) error {
			c.said[f.Name] = append(c.said[f.Name], value)
			return nil
		}
		for _, name := range append([]string{f.Name, f.Short}, f.Also...) {
			switch {
			case name == "":
			case f.Bool:
				fs.BoolFunc(name, "", note)
			default:
				fs.Func(name, "", note)
			}
		}
	}
	if err := fs.Parse(words); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%q is no flag", fs.Arg(0))
	}
	var errs []error
	for _, f := range c.flags {
		value, ok, err := c.Value(f.Name)
		errs = append(errs, err)
		if ok && f.Refused != "" && value != "" && value != "false" {
			errs = append(errs, fmt.Errorf("with --%s it %s", f.Name, f.Refused))
		}
	}
	return errors.Join(errs...)
}

// Value returns the value of a flag, or else of the first of its variables that is set; of a list that is given again and again, all of it.
// The error names a variable whose value is not in the pod.
func (c InitContainer) Value(name string) (value string, ok bool, err error) {
	f := c.flags[slices.IndexFunc(c.flags, func(f Flag) bool { return f.Name == name })]
	if said := c.said[name]; len(said) > 0 {
		if f.List {
			return joined(said...), true, nil
		}
		return said[len(said)-1], true, nil
	}
	for _, name := range f.Variables {
		// A Service called envoy makes the kubelet set ENVOY_PORT=tcp://10.96.0.7:80 in every container.
		if value, ok, err = c.Variable(name); err != nil || ok && (value != "" || !f.Bool) && !strings.Contains(value, "://") {
			if f.List {
				value = joined(value)
			}
			return value, ok, err
		}
	}
	return "", false, nil
}

// joined makes one list of several, without empty elements.
func joined(lists ...string) string {
	all := strings.Split(strings.Join(lists, ","), ",")
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return strings.TrimSpace(s) == "" }), ",")
}

// Values returns the values of a flag that is given again and again.
func (c InitContainer) Values(name string) []string { return c.said[name] }

// Variable returns the value of a variable. Of several of a name the last counts, and each before those of EnvFrom. The error says that the
// value is not in the pod.
func (c InitContainer) Variable(name string) (value string, ok bool, err error) {
	for _, e := range slices.Backward(c.Container.Env) {
		if e.Name != name {
			continue
		}
		if e.ValueFrom != nil || strings.Contains(e.Value, "$(") {
			err = fmt.Errorf("the value of variable %s is not in the pod", name)
		}
		return e.Value, true, err
	}
	if len(c.Container.EnvFrom) > 0 {
		err = fmt.Errorf("the value of variable %s is not in the pod", name)
	}
	return "", false, err
}

// Apply sets in a Redirect what all flags say. A variable whose value is no boolean, where one is wanted, counts as not set.
func (c InitContainer) Apply(r *redirect.Redirect) error {
	var errs []error
	for _, f := range c.flags {
		value, ok, err := c.Value(f.Name)
		if err == nil && ok {
			if err = f.Apply(r, value); err != nil && f.Bool && len(c.said[f.Name]) == 0 {
				err = nil
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", f.Name, err))
		}
	}
	return errors.Join(errs...)
}
