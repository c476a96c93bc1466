// Package repairflags has the flags of the repair controller's options. An agent that has other flags reads these from their
// environment variables alone.
package repairflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/repair"
)

// Flags are the values of the flags.
type Flags struct {
	// Options are set, less Criteria and Detect.
	repair.Options
	// Uncaptured makes the action concern the pods that detection finds too.
	Uncaptured bool

	criteria
}

// Variables are further environment variables of the flags, for [cli.BindEnv].
var Variables = map[string][]string{"node-name": {"NODE_NAME"}}

// criteria are the texts of the flags for [repair.Criteria].
type criteria struct {
	InitContainer, ExitCodes, Message, Annotation, Label, LabelSelector, FieldSelector string
}

// Register declares the flags. Some defaults come from f.Identity.
func (f *Flags) Register(fs *pflag.FlagSet) {
	defaults := repair.Options{}.WithDefaults()
	label := repair.CriteriaFor(f.Identity, dialect.Dialect{})
	fs.StringVar((*string)(&f.Action), "repair", "none", "what to do with pods that started without redirection: none, label, delete, repair")
	fs.BoolVar(&f.Uncaptured, "repair-uncaptured", true, "do so also with pods that --detect finds; false: only with those whose check fails")
	fs.StringVar(&f.Node, "node-name", "", "name of this node (spec.nodeName of its pods)")
	fs.StringVar(&f.InitContainer, "repair-init-container", "", "name of the init container that checks redirection (default: the dialect's)")
	fs.StringVar(&f.ExitCodes, "repair-exit-codes", "", "exit codes of that container that mean missing redirection, with commas between (default: the dialect's)")
	fs.StringVar(&f.Message, "repair-message", "", "text that its termination message must contain (default: any)")
	fs.StringVar(&f.Annotation, "repair-annotation", "", "annotation that a pod must have; - for none (default: the dialect's)")
	fs.StringVar(&f.Label, "repair-label", label.HandledLabel+"="+label.HandledValue, "label that the label action sets")
	fs.StringVar(&f.LabelSelector, "repair-label-selector", "", "label selector for the pods to look at")
	fs.StringVar(&f.FieldSelector, "repair-field-selector", "", "field selector for the pods to look at, such as metadata.namespace!=dev")
	fs.StringVar(&f.ProcRoot, "repair-proc", "/proc", "proc file system in which the pods' processes are seen, such as /host/proc")
	fs.StringVar(&f.HostRoot, "repair-host-root", "", "root directory whose iptables is run: /proc/1/root in a container that shares the host's processes (default: our own)")
	fs.Float64Var(&f.NodeBudget.PerMinute, "repair-node-rate", defaults.NodeBudget.PerMinute, "actions a minute on this node, for the pods of each namespace, those of the node's proxy too")
	fs.IntVar(&f.NodeBudget.Burst, "repair-node-burst", defaults.NodeBudget.Burst, "actions at once on this node, for the pods of each namespace")
	fs.BoolVar(&f.Force, "repair-force-delete", false, "delete pods whose eviction a disruption budget forbids")
	fs.BoolVar(&f.SpareUnmanaged, "repair-spare-unmanaged", false, "do not delete pods without a controlling owner, which nothing would make anew")
	fs.DurationVar(&f.VerifyInterval, "repair-verify-interval", 0, "compare each captured pod's rules with the wanted ones once in this time; 0 for never")
}

// FromEnv returns the values that the environment variables of the flags give, such as MESHCNI_REPAIR_NODE_RATE for
// --repair-node-rate, and the flags' defaults for the rest. The error names every bad variable.
func FromEnv(id meshcni.Identity, env func(string) (string, bool)) (Flags, error) {
	f := Flags{Options: repair.Options{Identity: id.WithDefaults()}}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Register(fs)
	cli.BindEnv(fs, f.Identity.EnvPrefix, Variables)
	return f, cli.Fill(fs, cli.Env(env))
}

// CriteriaOf returns the criteria of each mesh. One of the meshes must have a check in its pods, unless their proxies are all on
// the node; [repair.Detection] finds the pods of the others. With that error the criteria are returned too.
func (f Flags) CriteriaOf(meshes dialect.Set) (map[string]repair.Criteria, error) {
	all := map[string]repair.Criteria{}
	var unchecked error
	checked := false
	for d := range meshes.All() {
		if d.NodeProxy != nil {
			continue
		}
		c, err := f.read(f.Identity, d)
		if err != nil {
			return nil, err
		}
		all[d.Name] = c
		if err := c.Validate(); err != nil {
			unchecked = errors.Join(unchecked, fmt.Errorf("--repair-init-container, --repair-exit-codes: dialect %s: %w", d.Name, err))
		} else {
			checked = true
		}
	}
	if checked {
		return all, nil
	}
	return all, unchecked
}

func (f criteria) read(id meshcni.Identity, d dialect.Dialect) (c repair.Criteria, err error) {
	c = repair.CriteriaFor(id, d)
	if f.InitContainer != "" {
		c.Containers = []string{f.InitContainer}
	}
	if f.ExitCodes != "" {
		if c.ExitCodes, err = parseExitCodes(f.ExitCodes); err != nil {
			return c, fmt.Errorf("--repair-exit-codes: %w", err)
		}
	}
	c.Message = f.Message
	switch f.Annotation {
	case "":
	case "-":
		c.Annotation = ""
	default:
		c.Annotation = f.Annotation
	}
	set, err := labels.ConvertSelectorToLabelsMap(f.Label)
	if err != nil || len(set) != 1 {
		return c, fmt.Errorf("--repair-label %q: not one label, key=value", f.Label)
	}
	for k, v := range set {
		if v == "" {
			return c, fmt.Errorf("--repair-label %q: the value is empty", f.Label)
		}
		c.HandledLabel, c.HandledValue = k, v
	}
	if f.LabelSelector != "" {
		if c.Labels, err = labels.Parse(f.LabelSelector); err != nil {
			return c, fmt.Errorf("--repair-label-selector: %w", err)
		}
	}
	if f.FieldSelector != "" {
		if c.Fields, err = repair.ParseFields(f.FieldSelector); err != nil {
			return c, fmt.Errorf("--repair-field-selector: %w", err)
		}
	}
	return c, nil
}

// parseExitCodes parses exit codes from 1 to 255, separated by commas.
func parseExitCodes(s string) ([]int32, error) {
	var codes []int32
	for field := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(field), 10, 8)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("exit code %q: not a number from 1 to 255", field)
		}
		codes = append(codes, int32(n))
	}
	return codes, nil
}
