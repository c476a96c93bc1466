package repaircmd

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/apiserver"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
)

// Settings are the controller's settings, and those of the plugin that it shares.
// [FromEnv] returns the defaults of the former.
type Settings struct {
	// Options are the controller's options. [Settings.New] sets those that follow
	// from the fields below and from [Host].
	repair.Options
	criteria
	// Detect finds the pods in the mesh that started without the plugin, by the attachments in CNICacheDir and by the
	// plugin's records. It takes the place of Options.Detect.
	Detect bool
	// CNICacheDir is libcni's cache.
	CNICacheDir string
	// Uncaptured makes the action concern the pods that Detect finds.
	Uncaptured bool
	// Plugin is the plugin's configuration. Repair uses Type, Dialects, Backend, UncapturedFamily, RefuseProxyUID, RefuseNetRaw, RunDir,
	// PodNamespace and the namespaces that Kubernetes excludes, to decide and apply as the plugin does.
	Plugin netconf.Config
	access apiserver.Access
	// InstallerReadyURL is the URL of the node agent's /readyz. Nothing is deleted
	// unless it answers 200. Empty: it is not asked.
	InstallerReadyURL string
}

// register declares the flags with their defaults.
func (s *Settings) register(fs *pflag.FlagSet, known []dialect.Dialect) {
	s.Plugin.Dialects = netconf.Dialects{known[0].Name}
	fs.Var(cli.Text(&s.Plugin.Dialects, "a,b"), "dialect", cli.DialectUsage(known))
	fs.StringVar((*string)(&s.Plugin.Backend), "backend", "auto", "firewall backend, the plugin's: auto, iptables, iptables-nft, iptables-legacy, nftables")
	fs.Var(cli.List(&s.Plugin.Kubernetes.ExcludeNamespaces, "string"), "exclude-namespaces", "namespaces to leave alone, with commas between")
	fs.StringVar(&s.Plugin.Kubernetes.ExcludeNamespaceSelector, "exclude-namespace-selector", "", "labels of namespaces to leave alone, such as mesh=off (needs get on namespaces)")
	s.Plugin.UncapturedFamily = redirect.UncapturedAllow
	cli.Ambient(fs, &s.Plugin.Ambient)
	fs.Var(cli.Required((*string)(&s.Plugin.UncapturedFamily), "string"), "uncaptured-family", "what the plugin does with an address family that the mesh does not capture: allow, drop")
	fs.BoolVar(&s.Plugin.RefuseProxyUID, "refuse-proxy-uid", false, "whether the plugin refuses a pod with a container that the rules may take for the proxy; such a pod is left alone")
	fs.BoolVar(&s.Plugin.RefuseNetRaw, "refuse-net-raw", false, "whether the plugin refuses a pod with a container that may set the proxy's mark; such a pod is left alone")
	s.access.Register(fs)
	fs.StringVar(&s.InstallerReadyURL, "installer-ready-url", "", "the node agent's /readyz: while it does not answer 200, nothing is deleted (default: not asked)")
	fs.StringVar(&s.Plugin.RunDir, "run-dir", s.Identity.RunDir, "the plugin's run_dir, where its records of attachments are kept up to date; one that is not there has none")
	fs.BoolVar(&s.Detect, "detect", true, "find pods in the mesh that started without the plugin, and say so")
	fs.StringVar(&s.CNICacheDir, "cni-cache-dir", "/var/lib/cni", "libcni's cache, for --detect; without it the plugin's records alone tell")
	fs.StringVar(&s.Plugin.Type, "plugin-type", s.Identity.Plugin, "the plugin's name in the network's configuration, for --detect")
	fs.StringVar(&s.Plugin.PodNamespace, "pod-namespace", s.Identity.Namespace, "the node agent's own namespace, whose pods the plugin lets through")
	s.registerRepair(fs)
	s.bindEnv(fs)
}

func (s *Settings) bindEnv(fs *pflag.FlagSet) {
	also := maps.Clone(apiserver.Variables)
	also["node-name"] = []string{"NODE_NAME"}
	cli.BindEnv(fs, s.Identity.EnvPrefix, also)
}

// criteria are the texts of the flags for [repair.Criteria].
type criteria struct {
	InitContainer, ExitCodes, Message, Annotation, Label, LabelSelector, FieldSelector string
}

// registerRepair declares the controller's own flags.
func (s *Settings) registerRepair(fs *pflag.FlagSet) {
	fs.StringVar((*string)(&s.Action), "repair", "none", "what to do with pods that started without redirection: none, label, delete, repair")
	fs.BoolVar(&s.Uncaptured, "repair-uncaptured", true, "do so also with pods that --detect finds; false: only with those whose check fails")
	fs.StringVar(&s.Node, "node-name", "", "name of this node (spec.nodeName of its pods)")
	fs.StringVar(&s.InitContainer, "repair-init-container", "", "name of the init container that checks redirection (default: the dialect's)")
	fs.StringVar(&s.ExitCodes, "repair-exit-codes", "", "exit codes of that container that mean missing redirection, with commas between (default: the dialect's)")
	fs.StringVar(&s.Message, "repair-message", "", "text that its termination message must contain (default: any)")
	fs.StringVar(&s.Annotation, "repair-annotation", "", "annotation that a pod must have; - for none (default: the dialect's)")
	fs.StringVar(&s.Label, "repair-label", s.Identity.Key(repair.DefaultLabelName)+"="+repair.DefaultLabelValue, "label that the label action sets")
	fs.StringVar(&s.LabelSelector, "repair-label-selector", "", "label selector for the pods to look at")
	fs.StringVar(&s.FieldSelector, "repair-field-selector", "", "field selector for the pods to look at, such as metadata.namespace!=dev")
	fs.StringVar(&s.ProcRoot, "repair-proc", "/proc", "proc file system in which the pods' processes are seen, such as /host/proc")
	fs.StringVar(&s.HostRoot, "repair-host-root", "", "root directory whose iptables is run: /proc/1/root in a container that shares the host's processes (default: our own)")
	fs.Float64Var(&s.NodeBudget.PerMinute, "repair-node-rate", repair.DefaultNodeBudget.PerMinute, "actions a minute on this node, for the pods of each namespace")
	fs.IntVar(&s.NodeBudget.Burst, "repair-node-burst", repair.DefaultNodeBudget.Burst, "actions at once on this node, for the pods of each namespace")
	fs.Float64Var(&s.ClusterBudget.PerMinute, "repair-cluster-rate", 0, "deletions a minute in the whole cluster, kept in a Lease; 0 for no such bound")
	fs.IntVar(&s.ClusterBudget.Burst, "repair-cluster-burst", repair.DefaultNodeBudget.Burst, "deletions at once in the whole cluster")
	fs.StringVar(&s.BudgetNamespace, "repair-budget-namespace", s.Identity.Namespace, "namespace of that Lease, "+s.Identity.Program("repair-budget"))
	fs.Float64Var(&s.MaxBrokenShare, "repair-max-broken-share", repair.DefaultMaxBrokenShare, "share of a namespace's meshed pods here, and of such namespaces, that may be broken; above it deleting is held back")
	fs.IntVar(&s.MinBroken, "repair-min-broken", repair.DefaultMinBroken, "broken pods of a namespace, and such namespaces, from which on that share counts")
	fs.DurationVar(&s.TrialInterval, "repair-trial-interval", repair.DefaultTrialInterval, "time between single deletions in a namespace while that share holds back the rest")
	fs.BoolVar(&s.Force, "repair-force-delete", false, "delete pods whose eviction a disruption budget forbids")
	fs.BoolVar(&s.SpareUnmanaged, "repair-spare-unmanaged", false, "do not delete pods without a controlling owner, which nothing would make anew")
	fs.DurationVar(&s.VerifyInterval, "repair-verify-interval", 0, "compare each captured pod's rules with the wanted ones once in this time; 0 for never")
}

// FromEnv returns the controller's settings from the environment variables of
// meshcni-repair's flags, such as MESHCNI_REPAIR_NODE_RATE for
// --repair-node-rate, and the flags' defaults for the rest. It is for agents that
// do not have these flags. The error names every bad variable.
func FromEnv(of meshcni.Identity, env func(string) (string, bool)) (Settings, error) {
	s := Settings{Options: repair.Options{Identity: of.WithDefaults()}}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.registerRepair(fs)
	s.bindEnv(fs)
	return s, cli.Fill(fs, cli.Env(env))
}

// Host is the program that runs the controller.
type Host struct {
	// Dialects are those that Settings.Plugin.Dialects may name. Required.
	Dialects []dialect.Dialect
	// UserAgent is sent to the API server. Default: client-go's.
	UserAgent string
	// Metrics receives the controller's metrics. Nil: there are none.
	Metrics prometheus.Registerer
	// Log is the controller's log.
	Log *slog.Logger
}

// Acts reports whether an action or verification is set.
func (s Settings) Acts() bool {
	return s.Action != "" && s.Action != repair.ActionNone || s.VerifyInterval > 0
}

// Validate checks the settings without network or files. Errors name the flag.
func (s Settings) Validate(known []dialect.Dialect) error {
	_, err := s.options(Host{Dialects: known})
	return err
}

// New makes the controller. For a bad setting the error names the flag.
func (s Settings) New(h Host) (*repair.Controller, error) {
	o, err := s.options(h)
	if err != nil {
		return nil, err
	}
	if o.Config, err = s.restConfig(); err != nil {
		return nil, err
	}
	o.Config.UserAgent = h.UserAgent
	return repair.New(o)
}

// options returns the controller's options without the API server.
func (s Settings) options(h Host) (o repair.Options, err error) {
	o = s.Options
	o.Metrics, o.Log = h.Metrics, h.Log
	if s.InstallerReadyURL != "" {
		o.Installed = asker(s.InstallerReadyURL)
	}
	if _, err := repair.ParseAction(string(s.Action)); err != nil {
		return o, named("repair", err)
	}
	if err := dialect.Validate(h.Dialects); err != nil {
		return o, err
	}
	if s.Plugin.UncapturedFamily, err = redirect.ParseUncapturedFamily(string(s.Plugin.UncapturedFamily)); err != nil {
		return o, named("uncaptured-family", err)
	}
	if o.Meshes, err = dialect.Configure(h.Dialects, s.Plugin); err != nil {
		return o, dialect.ByFlag(err, named)
	}
	if o.Backend, err = ruleset.ParseBackend(string(s.Plugin.Backend)); err != nil {
		return o, named("backend", err)
	}
	o.Records = attachment.Open(s.Plugin.RunDir)
	if o.Detect = nil; s.Detect {
		o.Detect = &repair.Detection{
			CacheDir: s.CNICacheDir, AgentNamespace: s.Plugin.PodNamespace, Act: s.Uncaptured,
		}
		if s.Plugin.Type != "" {
			o.Detect.Types = []string{s.Plugin.Type}
		}
	}
	if s.Node == "" {
		return o, errors.New("--node-name: not set (as an environment variable: " + s.Identity.Env("node-name") + ", from spec.nodeName)")
	}
	if s.HostRoot != "" && !filepath.IsAbs(s.HostRoot) {
		return o, fmt.Errorf("--repair-host-root %q: not an absolute path", s.HostRoot)
	}
	if err := s.NodeBudget.Validate(); err != nil {
		return o, fmt.Errorf("--repair-node-rate, --repair-node-burst: %w", err)
	}
	if s.ClusterBudget.PerMinute == 0 {
		o.ClusterBudget = repair.Budget{} // no bound
	} else if err := s.ClusterBudget.Validate(); err != nil {
		return o, fmt.Errorf("--repair-cluster-rate, --repair-cluster-burst: %w", err)
	}
	o.Criteria, err = s.CriteriaOf(o.Meshes)
	return o, err
}

// CriteriaOf returns the criteria of each mesh. One of the meshes must have a check in its pods, unless their proxies are all on
// the node; [repair.Detection] finds the pods of the others. With that error the criteria are returned too.
func (s Settings) CriteriaOf(meshes dialect.Set) (map[string]repair.Criteria, error) {
	all := map[string]repair.Criteria{}
	var unchecked error
	checked := false
	for d := range meshes.All() {
		if d.NodeProxy != nil {
			continue
		}
		c, err := s.read(s.Identity, d)
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

func (f criteria) read(of meshcni.Identity, d dialect.Dialect) (c repair.Criteria, err error) {
	c = repair.CriteriaFor(of, d)
	if f.InitContainer != "" {
		c.Containers = []string{f.InitContainer}
	}
	if f.ExitCodes != "" {
		if c.ExitCodes, err = repair.ParseExitCodes(f.ExitCodes); err != nil {
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

func named(flag string, err error) error {
	return fmt.Errorf("--%s: %w", flag, err)
}

// The bounds of requests to the API server, so that a node full of broken pods does not overload it.
const (
	requestsPerSecond = 20
	requestsAtOnce    = 40
)

func (s Settings) restConfig() (*rest.Config, error) {
	config, err := s.access.Config()
	if err != nil {
		return nil, err
	}
	if s.access.Kubeconfig == "" {
		if _, err := os.Stat(config.BearerTokenFile); err != nil {
			return nil, fmt.Errorf("read the service account's token: %w", err)
		}
	}
	config.QPS, config.Burst = requestsPerSecond, requestsAtOnce
	return config, nil
}
