package repaircmd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/repair"
)

// Settings are the controller's, and those of the plugin that it has to agree
// with. [FromEnv] gives the defaults.
type Settings struct {
	repair.Flags
	// Plugin is the plugin's configuration, of which repair goes by Dialect,
	// Backend, UncapturedFamily, RefuseProxyUID, RunDir and ExcludeNamespaces: it
	// decides and applies as the plugin does.
	Plugin netconf.Config
	API
	// Kubeconfig is used instead of API, if not empty.
	Kubeconfig string
	// InstallerReadyURL is the node agent's /readyz. While it does not answer
	// 200, nothing is deleted. Empty: not asked.
	InstallerReadyURL string
}

// API is how a pod reaches the API server.
type API struct {
	Host, Port, Protocol string
	// ServiceAccountDir holds token and ca.crt.
	ServiceAccountDir string
}

// register declares the flags with their defaults.
func (s *Settings) register(fs *pflag.FlagSet, known []dialect.Dialect) {
	fs.StringVar(&s.Plugin.Dialect, "dialect", known[0].Name, "the mesh: "+strings.Join(dialects.NamesOf(known), ", "))
	fs.StringVar((*string)(&s.Plugin.Backend), "backend", "auto", "firewall backend, the plugin's: auto, iptables, iptables-nft, iptables-legacy, nftables")
	fs.Var(cli.List(&s.Plugin.Kubernetes.ExcludeNamespaces, "string"), "exclude-namespaces", "namespaces to leave alone, with commas between")
	fs.StringVar((*string)(&s.Plugin.UncapturedFamily), "uncaptured-family", "allow", "what the plugin does with an address family that the mesh does not capture: allow, drop")
	fs.BoolVar(&s.Plugin.RefuseProxyUID, "refuse-proxy-uid", false, "whether the plugin refuses a pod with a container that the rules may take for the proxy; such a pod is left alone")
	fs.StringVar(&s.Kubeconfig, "kubeconfig", "", "kubeconfig to use instead of the pod's service account")
	fs.StringVar(&s.Host, "kubernetes-service-host", "", "the API server, where there is no kubeconfig")
	fs.StringVar(&s.Port, "kubernetes-service-port", "443", "its port")
	fs.StringVar(&s.Protocol, "kubernetes-service-protocol", "https", "its protocol")
	fs.StringVar(&s.ServiceAccountDir, "service-account-dir", "/var/run/secrets/kubernetes.io/serviceaccount", "where the pod's credentials are")
	fs.StringVar(&s.InstallerReadyURL, "installer-ready-url", "", "the node agent's /readyz: while it does not answer 200, nothing is deleted (default: not asked)")
	fs.StringVar(&s.Plugin.RunDir, "run-dir", netconf.DefaultRunDir, "the plugin's run_dir, where its records of attachments are kept up to date; one that is not there has none")
	registerRepair(fs, &s.Flags)
	bindEnv(fs)
}

func bindEnv(fs *pflag.FlagSet) {
	also := map[string][]string{"node-name": {"NODE_NAME"}}
	for _, name := range []string{"kubernetes-service-host", "kubernetes-service-port", "kubernetes-service-protocol"} {
		also[name] = []string{strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
	}
	cli.BindEnv(fs, cli.Prefix, also)
}

// registerRepair declares the controller's own flags.
func registerRepair(fs *pflag.FlagSet, f *repair.Flags) {
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
	fs.StringVar(&f.BudgetNamespace, "repair-budget-namespace", "meshcni-system", "namespace of that Lease, "+repair.LeaseName)
	fs.Float64Var(&f.MaxBrokenShare, "repair-max-broken-share", repair.DefaultMaxShare, "share of the node's pods in the mesh that may be broken; above it deleting is held back")
	fs.IntVar(&f.MinBroken, "repair-min-broken", repair.DefaultMinBroken, "broken pods from which on that share counts")
	fs.DurationVar(&f.TrialInterval, "repair-trial-interval", repair.DefaultTrialEvery, "time between single deletions while that share holds back the rest")
	fs.BoolVar(&f.Force, "repair-force-delete", false, "delete pods whose eviction a disruption budget forbids")
	fs.BoolVar(&f.SpareUnmanaged, "repair-spare-unmanaged", false, "do not delete pods without a controlling owner, which nothing would make anew")
	fs.DurationVar(&f.VerifyInterval, "repair-verify-interval", 0, "compare the rules of each running captured pod with the wanted ones once in this time; 0 for never")
}

// FromEnv reads the controller's settings from the variables that stand for
// meshcni-repair's flags, such as MESHCNI_REPAIR_NODE_RATE for
// --repair-node-rate: an agent that has other flags takes its finer settings so.
// Errors name the variable.
func FromEnv(env func(string) (string, bool)) (Settings, error) {
	var s Settings
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	registerRepair(fs, &s.Flags)
	bindEnv(fs)
	return s, cli.Fill(fs, cli.Env(env))
}

// Host is what the program that runs a controller brings.
type Host struct {
	// Dialects are those that Settings.Dialect may name.
	Dialects []dialect.Dialect
	// UserAgent is how the program calls itself at the API server. Default: client-go's.
	UserAgent string
	// Installed says why new pods of this node would not be redirected, if so.
	// Nil: InstallerReadyURL is asked.
	Installed func() error
	// Metrics may be nil.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Validate says what is wrong with the settings. It asks nobody, and reads no
// file. Errors name the flag.
func (s Settings) Validate(known []dialect.Dialect) error {
	h, err := s.host(Host{Dialects: known})
	if err != nil {
		return err
	}
	return s.Flags.Validate(h.Dialect)
}

// Open makes the controller, to Run and to ask whether it is Ready. Call stop
// after Run. Errors name the flag.
func (s Settings) Open(h Host) (c *repair.Controller, stop func(), err error) {
	host, err := s.host(h)
	if err != nil {
		return nil, nil, err
	}
	if host.Config, err = s.restConfig(); err != nil {
		return nil, nil, err
	}
	host.Config.UserAgent = h.UserAgent
	return s.Flags.Open(host)
}

// host is what the controller gets, less the API server.
func (s Settings) host(h Host) (repair.Host, error) {
	_, errAction := repair.ParseAction(s.Action)
	mesh, errDialect := dialects.Choose(h.Dialects, s.Plugin.Dialect, s.Plugin.Kubernetes.ExcludeNamespaces)
	backend, errBackend := apply.ParseBackend(string(s.Plugin.Backend))
	uncaptured, errUncaptured := redirect.ParseUncapturedFamily(string(s.Plugin.UncapturedFamily))
	host := repair.Host{
		Dialect: mesh, Backend: backend, Metrics: h.Metrics, Log: h.Log, Installed: h.Installed,
		Options: dialect.Options{UncapturedFamily: uncaptured, RefuseProxyUID: s.Plugin.RefuseProxyUID},
		Records: attachment.In(s.Plugin.RunDir),
	}
	if host.Installed == nil && s.InstallerReadyURL != "" {
		host.Installed = asker(s.InstallerReadyURL)
	}
	return host, errors.Join(named("repair", errAction), named("dialect", errDialect), named("backend", errBackend), named("uncaptured-family", errUncaptured))
}

func named(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

// Requests to the API server: a few at once, so that a node full of broken pods
// does not become a burden on it.
const (
	requestsPerSecond = 20
	requestsAtOnce    = 40
)

// restConfig reads the kubeconfig, or what a pod has.
func (s Settings) restConfig() (config *rest.Config, err error) {
	if s.Kubeconfig != "" {
		if config, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}
	} else {
		if s.Host == "" {
			return nil, errors.New("no API server: neither --kubeconfig nor --kubernetes-service-host (KUBERNETES_SERVICE_HOST) is set")
		}
		config = s.API.Config()
		if _, err := os.Stat(config.BearerTokenFile); err != nil {
			return nil, fmt.Errorf("read the service account's token: %w", err)
		}
	}
	config.QPS, config.Burst = requestsPerSecond, requestsAtOnce
	return config, nil
}

// Config is the API server as a service account reaches it. The token is read
// again as the kubelet renews it.
func (a API) Config() *rest.Config {
	c := &rest.Config{
		Host:            a.Protocol + "://" + net.JoinHostPort(strings.Trim(a.Host, "[]"), a.Port),
		BearerTokenFile: filepath.Join(a.ServiceAccountDir, "token"),
	}
	if a.Protocol == "https" {
		c.CAFile = filepath.Join(a.ServiceAccountDir, "ca.crt")
	}
	return c
}
