package repair

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/apply"
)

// Flags are the controller's settings as a command line has them. Fill them with
// Register, then call Open.
type Flags struct {
	Action, Node                                         string
	InitContainer, ExitCodes, Message, Annotation, Label string
	LabelSelector, FieldSelector                         string
	ProcRoot, HostRoot                                   string
	NodeBudget, ClusterBudget                            Budget
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
	fs.StringVar(&f.Label, "repair-label", DefaultLabel+"="+DefaultLabelValue, "label that the label action sets")
	fs.StringVar(&f.LabelSelector, "repair-label-selector", "", "label selector for the pods to look at")
	fs.StringVar(&f.FieldSelector, "repair-field-selector", "", "field selector for the pods to look at, such as metadata.namespace!=dev")
	fs.StringVar(&f.ProcRoot, "repair-proc", "/proc", "proc file system in which the pods' processes are seen, such as /host/proc")
	fs.StringVar(&f.HostRoot, "repair-host-root", "", "root directory whose iptables is run, as the plugin does on the host: /proc/1/root in a container that shares the host's processes (default: our own)")
	fs.Float64Var(&f.NodeBudget.PerMinute, "repair-node-rate", DefaultNodeBudget.PerMinute, "actions a minute on this node")
	fs.IntVar(&f.NodeBudget.Burst, "repair-node-burst", DefaultNodeBudget.Burst, "actions at once on this node")
	fs.Float64Var(&f.ClusterBudget.PerMinute, "repair-cluster-rate", 0, "deletions a minute in the whole cluster, kept in a Lease; 0 for no such bound")
	fs.IntVar(&f.ClusterBudget.Burst, "repair-cluster-burst", DefaultNodeBudget.Burst, "deletions at once in the whole cluster")
	fs.StringVar(&f.BudgetNamespace, "repair-budget-namespace", "meshcni-system", "namespace of that Lease, "+LeaseName)
	fs.Float64Var(&f.MaxBrokenShare, "repair-max-broken-share", DefaultMaxShare, "share of the node's pods in the mesh that may be broken; above it deleting is held back")
	fs.IntVar(&f.MinBroken, "repair-min-broken", DefaultMinBroken, "broken pods from which on that share counts")
	fs.DurationVar(&f.TrialInterval, "repair-trial-interval", DefaultTrialEvery, "time between single deletions while that share holds back the rest")
	fs.BoolVar(&f.Force, "repair-force-delete", false, "delete pods whose eviction a disruption budget forbids")
	fs.BoolVar(&f.SpareUnmanaged, "repair-spare-unmanaged", false, "do not delete pods without a controlling owner, which nothing would make anew")
	fs.DurationVar(&f.VerifyInterval, "repair-verify-interval", 0, "compare the rules of each running captured pod with the wanted ones once in this time; 0 for never")
}

// LeaseName is the Lease of the cluster's budget.
const LeaseName = "meshcni-repair-budget"

// Enabled reports whether there is anything to do: an action, or verification.
func (f *Flags) Enabled() bool {
	return f.Action != "" && f.Action != string(ActionNone) || f.VerifyInterval > 0
}

// Host is what the program that runs a controller brings.
type Host struct {
	// Config is how to reach the API server. Required.
	Config *rest.Config
	// Dialect is the mesh's. Required.
	Dialect dialect.Dialect
	// Backend is which firewall backend the plugin uses; empty is auto.
	Backend apply.Name
	// Options are as in [InPlace].
	Options dialect.Options
	// Installed is as in [Breaker].
	Installed func() error
	// Records is as in [InPlace].
	Records attachment.Store
	// Metrics and Log are as in [Config].
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Validate says what is wrong with the flags for a mesh. It names the flag.
func (f *Flags) Validate(d dialect.Dialect) error {
	_, _, err := f.read(d)
	return err
}

func (f *Flags) read(d dialect.Dialect) (a Action, c Criteria, err error) {
	if a, err = ParseAction(f.Action); err != nil {
		return a, c, fmt.Errorf("--repair: %w", err)
	}
	if f.Node == "" {
		return a, c, errors.New("--node-name: not set (as an environment variable: MESHCNI_NODE_NAME, from spec.nodeName)")
	}
	if f.HostRoot != "" && !filepath.IsAbs(f.HostRoot) {
		return a, c, fmt.Errorf("--repair-host-root %q: not an absolute path", f.HostRoot)
	}
	if err := f.NodeBudget.Validate(); err != nil {
		return a, c, fmt.Errorf("--repair-node-rate, --repair-node-burst: %w", err)
	}
	if f.ClusterBudget.PerMinute != 0 {
		if err := f.ClusterBudget.Validate(); err != nil {
			return a, c, fmt.Errorf("--repair-cluster-rate, --repair-cluster-burst: %w", err)
		}
	}
	c, err = f.criteria(d)
	return a, c, err
}

// Open makes the controller that the flags describe. Call stop after its Run has
// ended. Errors are those of Validate, or that of the API server's configuration.
func (f *Flags) Open(h Host) (c *Controller, stop func(), err error) {
	action, criteria, err := f.read(h.Dialect)
	if err != nil {
		return nil, nil, err
	}
	kube, err := NewKube(h.Config)
	if err != nil {
		return nil, nil, err
	}
	wanted := Permissions(action, f.Force)
	if h.Dialect.NeedsNamespace && (action == ActionRepair || f.VerifyInterval > 0) {
		wanted = append(wanted, Permission{Verb: "get", Resource: "namespaces"})
	}
	config := Config{
		Node: f.Node, Action: action, Criteria: criteria,
		Source: kube.Pods(f.Node, f.LabelSelector), Cluster: kube,
		Mender: &InPlace{
			Dialect: h.Dialect, ProcRoot: f.ProcRoot, HostRoot: f.HostRoot, Backend: h.Backend, Options: h.Options, Namespace: kube.Namespace,
			Records: h.Records, Log: h.Log,
		},
		NodeBudget: f.NodeBudget,
		Breaker: &Breaker{
			MaxShare: f.MaxBrokenShare, MinBroken: f.MinBroken, TrialEvery: f.TrialInterval, Installed: h.Installed,
		},
		Force: f.Force, SpareUnmanaged: f.SpareUnmanaged, VerifyInterval: f.VerifyInterval,
		Metrics: h.Metrics, Log: h.Log,
	}
	if f.ClusterBudget.PerMinute != 0 && action == ActionDelete {
		config.ClusterBudget = &ClusterBudget{
			Leases: kube, Namespace: f.BudgetNamespace, Name: LeaseName, Holder: f.Node, Budget: f.ClusterBudget,
		}
		wanted = append(wanted, LeasePermissions(f.BudgetNamespace)...)
	}
	config.Permissions = func(ctx context.Context) ([]Permission, error) { return kube.Missing(ctx, wanted) }
	var denied func(error)
	config.Events, stop = NewRecorder(kube.EventSink(func(err error) { denied(err) }), f.Node)
	c, err = New(config)
	if err != nil {
		stop()
		return nil, nil, err
	}
	denied = func(err error) { c.refused(err) }
	if h.Metrics != nil {
		h.Metrics.MustRegister(kube)
	}
	return c, stop, nil
}

// LeasePermissions are what the cluster's budget needs in its namespace. Creating
// cannot be restricted by name.
func LeasePermissions(namespace string) []Permission {
	const group, resource = "coordination.k8s.io", "leases"
	return []Permission{
		{Verb: "get", Group: group, Resource: resource, Namespace: namespace, Name: LeaseName},
		{Verb: "update", Group: group, Resource: resource, Namespace: namespace, Name: LeaseName},
		{Verb: "create", Group: group, Resource: resource, Namespace: namespace},
	}
}

func (f *Flags) criteria(d dialect.Dialect) (Criteria, error) {
	c := CriteriaFor(d)
	var err error
	if f.InitContainer != "" {
		c.Containers = []string{f.InitContainer}
	}
	if f.ExitCodes != "" {
		if c.ExitCodes, err = ParseExitCodes(f.ExitCodes); err != nil {
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
		if c.Fields, err = fields.ParseSelector(f.FieldSelector); err != nil {
			return c, fmt.Errorf("--repair-field-selector: %w", err)
		}
		for _, r := range c.Fields.Requirements() {
			if !podFields(&corev1.Pod{}).Has(r.Field) {
				return c, fmt.Errorf("--repair-field-selector: pods are not selected by %q", r.Field)
			}
		}
	}
	return c, nil
}
