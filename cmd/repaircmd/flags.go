package repaircmd

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/repair"
)

// Flags are the flags of the repair controller. Call Register, parse, then call Options.
type Flags struct {
	Action, Node                                         string
	InitContainer, ExitCodes, Message, Annotation, Label string
	LabelSelector, FieldSelector                         string
	ProcRoot, HostRoot                                   string
	NodeBudget, ClusterBudget                            repair.Budget
	BudgetNamespace                                      string
	MaxBrokenShare                                       float64
	MinBroken                                            int
	TrialInterval, VerifyInterval                        time.Duration
	Force, SpareUnmanaged                                bool
}

// Register defines the flags with their defaults.
func (f *Flags) Register(fs *flag.FlagSet) {
	fs.StringVar(&f.Action, "repair", "none", "what to do with pods that started without redirection: none, label, delete, repair")
	fs.StringVar(&f.Node, "node-name", "", "name of this node (spec.nodeName of its pods)")
	fs.StringVar(&f.InitContainer, "repair-init-container", "", "name of the init container that checks redirection (default: the dialect's)")
	fs.StringVar(&f.ExitCodes, "repair-exit-codes", "", "exit codes of that container that mean missing redirection, with commas between (default: the dialect's)")
	fs.StringVar(&f.Message, "repair-message", "", "text that its termination message must contain (default: any)")
	fs.StringVar(&f.Annotation, "repair-annotation", "", "annotation that a pod must have; - for none (default: the dialect's)")
	fs.StringVar(&f.Label, "repair-label", repair.DefaultLabel+"="+repair.DefaultLabelValue, "label that the label action sets")
	fs.StringVar(&f.LabelSelector, "repair-label-selector", "", "label selector for the pods to look at")
	fs.StringVar(&f.FieldSelector, "repair-field-selector", "", "field selector for the pods to look at, such as metadata.namespace!=dev")
	fs.StringVar(&f.ProcRoot, "repair-proc", "/proc", "proc file system in which the pods' processes are seen, such as /host/proc")
	fs.StringVar(&f.HostRoot, "repair-host-root", "", "root directory whose iptables is run, as the plugin does on the host: /proc/1/root in a container that shares the host's processes (default: our own)")
	fs.Float64Var(&f.NodeBudget.PerMinute, "repair-node-rate", repair.DefaultNodeBudget.PerMinute, "actions a minute on this node")
	fs.IntVar(&f.NodeBudget.Burst, "repair-node-burst", repair.DefaultNodeBudget.Burst, "actions at once on this node")
	fs.Float64Var(&f.ClusterBudget.PerMinute, "repair-cluster-rate", 0, "deletions a minute in the whole cluster, kept in a Lease; 0 for no such bound")
	fs.IntVar(&f.ClusterBudget.Burst, "repair-cluster-burst", repair.DefaultNodeBudget.Burst, "deletions at once in the whole cluster")
	fs.StringVar(&f.BudgetNamespace, "repair-budget-namespace", repair.DefaultBudgetNamespace, "namespace of that Lease, meshcni-repair-budget")
	fs.Float64Var(&f.MaxBrokenShare, "repair-max-broken-share", repair.DefaultMaxBrokenShare, "share of the node's pods in the mesh that may be broken; above it deleting is held back")
	fs.IntVar(&f.MinBroken, "repair-min-broken", repair.DefaultMinBroken, "broken pods from which on that share counts")
	fs.DurationVar(&f.TrialInterval, "repair-trial-interval", repair.DefaultTrialInterval, "time between single deletions while that share holds back the rest")
	fs.BoolVar(&f.Force, "repair-force-delete", false, "delete pods whose eviction a disruption budget forbids")
	fs.BoolVar(&f.SpareUnmanaged, "repair-spare-unmanaged", false, "do not delete pods without a controlling owner, which nothing would make anew")
	fs.DurationVar(&f.VerifyInterval, "repair-verify-interval", 0, "compare the rules of each running captured pod with the wanted ones once in this time; 0 for never")
}

// Enabled reports whether there is anything to do: an action, or verification.
func (f *Flags) Enabled() bool {
	return f.Action != "" && f.Action != string(repair.ActionNone) || f.VerifyInterval > 0
}

// Options returns the options that the flags stand for. An error names the flag.
func (f *Flags) Options(d dialect.Dialect) (o repair.Options, err error) {
	o = repair.Options{
		Node: f.Node, Dialect: d, Force: f.Force, SpareUnmanaged: f.SpareUnmanaged, VerifyInterval: f.VerifyInterval,
		NodeBudget: f.NodeBudget, BudgetNamespace: f.BudgetNamespace,
		MaxBrokenShare: f.MaxBrokenShare, MinBroken: f.MinBroken, TrialInterval: f.TrialInterval,
		ProcRoot: f.ProcRoot, HostRoot: f.HostRoot,
	}
	if o.Action, err = repair.ParseAction(f.Action); err != nil {
		return o, fmt.Errorf("--repair: %w", err)
	}
	if f.Node == "" {
		return o, errors.New("--node-name: not set (as an environment variable: MESHCNI_NODE_NAME, from spec.nodeName)")
	}
	if f.HostRoot != "" && !filepath.IsAbs(f.HostRoot) {
		return o, fmt.Errorf("--repair-host-root %q: not an absolute path", f.HostRoot)
	}
	if err := f.NodeBudget.Validate(); err != nil {
		return o, fmt.Errorf("--repair-node-rate, --repair-node-burst: %w", err)
	}
	if f.ClusterBudget.PerMinute != 0 {
		if err := f.ClusterBudget.Validate(); err != nil {
			return o, fmt.Errorf("--repair-cluster-rate, --repair-cluster-burst: %w", err)
		}
		o.ClusterBudget = f.ClusterBudget
	}
	o.Criteria, err = f.criteria(d)
	return o, err
}

func (f *Flags) criteria(d dialect.Dialect) (*repair.Criteria, error) {
	c := repair.CriteriaFor(d)
	var err error
	if f.InitContainer != "" {
		c.Containers = []string{f.InitContainer}
	}
	if f.ExitCodes != "" {
		if c.ExitCodes, err = repair.ParseExitCodes(f.ExitCodes); err != nil {
			return nil, fmt.Errorf("--repair-exit-codes: %w", err)
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
		return nil, fmt.Errorf("--repair-label %q: not one label, key=value", f.Label)
	}
	for k, v := range set {
		if v == "" {
			return nil, fmt.Errorf("--repair-label %q: the value is empty", f.Label)
		}
		c.HandledLabel, c.HandledValue = k, v
	}
	if f.LabelSelector != "" {
		if c.Labels, err = labels.Parse(f.LabelSelector); err != nil {
			return nil, fmt.Errorf("--repair-label-selector: %w", err)
		}
	}
	if f.FieldSelector != "" {
		if c.Fields, err = repair.ParseFields(f.FieldSelector); err != nil {
			return nil, fmt.Errorf("--repair-field-selector: %w", err)
		}
	}
	return &c, nil
}
