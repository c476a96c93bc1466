package redirectcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
)

// Given is a pod with what decides on it, for a program that has them from a cluster instead of files and flags.
type Given struct {
	Pod *corev1.Pod
	// Template: the pod is what a workload's template says, before any injector has seen it.
	Template bool
	// Namespace is the pod's; nil: not known.
	Namespace *corev1.Namespace
	// Config is the plugin's entry in the network configuration, and ConfigFrom says where it is from. Nil: there is none, and
	// the settings are the defaults.
	Config     []byte
	ConfigFrom string
	// Explained is set to what explain has found, whose verdict is the caller's to print. Nil: nobody asks.
	Explained *explain.Explanation
}

// kept are the flags of each of the commands that another program has too.
var kept = map[string][]string{
	"explain": {"output", "brief"},
	"rules":   {"format", "family"},
	"trace":   append([]string{"connection", "packets", "output"}, packetFlagNames...),
}

// Command returns explain, rules or trace for another program. When it runs it asks given for the pod that the arguments name. Its
// flags are those that say what to print or which packet to trace. Another name is a mistake in the program, and panics.
func (p Program) Command(name string, given func(cmd *cobra.Command, args []string) (Given, error)) *cobra.Command {
	p.setDefaults()
	stdout, stderr := &cli.CleanWriter{To: p.Stdout}, &cli.CleanWriter{To: p.Stderr}
	p.Stdout, p.Stderr = stdout, stderr
	p.clear, p.out, p.template = func() {}, new(explain.Explanation), new(bool)
	files, local := map[string][]byte{}, p.ReadFile
	var inner *cobra.Command
	p.ReadFile = func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return text, nil
		}
		if f := inner.Flags().Lookup("packets"); f != nil && f.Value.String() == name {
			return local(name)
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	p.Env = func(string) (string, bool) { return "", false }
	make, ok := map[string]func() *cobra.Command{"explain": p.explainCommand, "rules": p.rulesCommand, "trace": p.traceCommand}[name]
	if !ok {
		panic(fmt.Sprintf("redirectcmd: no command %q for another program", name))
	}
	inner = make()
	outer := &cobra.Command{Short: inner.Short, Long: inner.Long}
	for _, flag := range kept[name] {
		outer.Flags().AddFlag(inner.Flags().Lookup(flag))
	}
	outer.RunE = func(cmd *cobra.Command, args []string) error {
		g, err := given(cmd, args)
		if err != nil {
			return err
		}
		*p.template = g.Template
		pod, namespace := "pod "+g.Pod.Namespace+"/"+g.Pod.Name, ""
		errs := []error{put(files, pod, g.Pod)}
		if g.Namespace != nil {
			namespace = "namespace " + g.Namespace.Name
			errs = append(errs, put(files, namespace, g.Namespace))
		}
		config := none
		if g.Config != nil {
			config = g.ConfigFrom
			files[config] = g.Config
		}
		for flag, value := range map[string]string{"file": pod, "namespace-file": namespace, "config": config} {
			errs = append(errs, inner.Flags().Set(flag, value))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		inner.SetContext(cmd.Context())
		err = inner.RunE(inner, nil)
		if g.Explained != nil {
			*g.Explained = *p.out
		}
		return errors.Join(err, stdout.Err, stderr.Err)
	}
	return outer
}

func put(files map[string][]byte, name string, object any) (err error) {
	files[name], err = json.Marshal(object)
	return err
}
