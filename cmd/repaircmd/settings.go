package repaircmd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/apiserver"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/repairflags"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/api/inpod"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
)

// settings are the controller's settings, and those of the plugin that it shares.
type settings struct {
	repairflags.Flags

	// detect finds the pods in the mesh that started without the plugin, by the attachments in cniCacheDir, libcni's cache, and by
	// the plugin's records.
	detect      bool
	cniCacheDir string
	// plugin is the plugin's configuration. Repair uses Type, Dialects, Backend, UncapturedFamily, RefuseProxyUID, RefuseNetRaw, RunDir,
	// PodNamespace and the namespaces that Kubernetes excludes, to decide and apply as the plugin does.
	plugin netconf.Config
	access apiserver.Access
	// installerReadyURL is the URL of the node agent's /readyz. Nothing is deleted unless it answers 200. Empty: it is not asked.
	installerReadyURL string
}

// register declares the flags with their defaults.
func (s *settings) register(fs *pflag.FlagSet, known []dialect.Dialect) {
	s.plugin.Dialects = netconf.Dialects{known[0].Name}
	fs.Var(cli.Text(&s.plugin.Dialects, "a,b"), "dialect", cli.DialectUsage(known))
	fs.StringVar((*string)(&s.plugin.Backend), "backend", "auto", "firewall backend, the plugin's: auto, iptables, iptables-nft, iptables-legacy, nftables")
	fs.Var(cli.List(&s.plugin.Kubernetes.ExcludeNamespaces, "string"), "exclude-namespaces", "namespaces to leave alone, with commas between")
	fs.StringVar(&s.plugin.Kubernetes.ExcludeNamespaceSelector, "exclude-namespace-selector", "", "labels of namespaces to leave alone, such as mesh=off (needs get on namespaces)")
	s.plugin.UncapturedFamily = redirect.UncapturedAllow
	cli.Ambient(fs, &s.plugin)
	fs.Var(cli.Required((*string)(&s.plugin.UncapturedFamily), "string"), "uncaptured-family", "what the plugin does with an address family that the mesh does not capture: allow, drop")
	fs.BoolVar(&s.plugin.RefuseProxyUID, "refuse-proxy-uid", false, "whether the plugin refuses a pod with a container that the rules may take for the proxy; such a pod is left alone")
	fs.BoolVar(&s.plugin.RefuseNetRaw, "refuse-net-raw", false, "whether the plugin refuses a pod with a container that may set the proxy's mark; such a pod is left alone")
	cli.Sandboxed(fs, &s.plugin)
	s.access.Register(fs)
	fs.StringVar(&s.installerReadyURL, "installer-ready-url", "", "the node agent's /readyz: while it does not answer 200, nothing is deleted (default: not asked)")
	fs.StringVar(&s.plugin.RunDir, "run-dir", s.Identity.RunDir, "the plugin's run_dir, where its records of attachments are kept up to date; one that is not there has none")
	fs.BoolVar(&s.detect, "detect", true, "find pods in the mesh that started without the plugin, and say so")
	fs.StringVar(&s.cniCacheDir, "cni-cache-dir", "/var/lib/cni", "libcni's cache, for --detect; without it the plugin's records alone tell")
	fs.StringVar(&s.plugin.Type, "plugin-type", s.Identity.Plugin, "the plugin's name in the network's configuration, for --detect")
	fs.StringVar(&s.plugin.PodNamespace, "pod-namespace", s.Identity.Namespace, "the node agent's own namespace, whose pods the plugin lets through")
	s.Register(fs)
	also := maps.Clone(apiserver.Variables)
	maps.Copy(also, repairflags.Variables)
	cli.BindEnv(fs, s.Identity.EnvPrefix, also)
}

// acts reports whether an action or verification is set.
func (s settings) acts() bool {
	return s.Action != "" && s.Action != repair.ActionNone || s.VerifyInterval > 0
}

// options returns the controller's options without the API server. It needs no network and no file. Errors name the flag.
func (s settings) options(known []dialect.Dialect) (o repair.Options, err error) {
	o = s.Options
	if s.installerReadyURL != "" {
		o.Installed = asker(s.installerReadyURL)
	}
	if _, err := repair.ParseAction(string(s.Action)); err != nil {
		return o, named("repair", err)
	}
	if err := dialect.Validate(known); err != nil {
		return o, err
	}
	if s.plugin.UncapturedFamily, err = redirect.ParseUncapturedFamily(string(s.plugin.UncapturedFamily)); err != nil {
		return o, named("uncaptured-family", err)
	}
	if o.Meshes, err = dialect.Configure(known, s.plugin); err != nil {
		return o, dialect.ByFlag(err, func(e *dialect.KeyError) error { return named(e.Flag(), e.Err) })
	}
	if o.Backend, err = ruleset.ParseBackend(string(s.plugin.Backend)); err != nil {
		return o, named("backend", err)
	}
	o.Records = attachment.Open(s.plugin.RunDir)
	o.Detect = nil
	if s.detect {
		o.Detect = &repair.Detection{
			CacheDir: s.cniCacheDir, AgentNamespace: s.plugin.PodNamespace, Act: s.Uncaptured,
		}
		if s.plugin.Type != "" {
			o.Detect.Types = []string{s.plugin.Type}
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
	o.Criteria, err = s.CriteriaOf(o.Meshes)
	return o, err
}

func named(flag string, err error) error {
	return fmt.Errorf("--%s: %w", flag, err)
}

// The bounds of requests to the API server, so that a node full of broken pods does not overload it.
const (
	requestsPerSecond = 20
	requestsAtOnce    = 40
)

func (s settings) restConfig(userAgent string) (*rest.Config, error) {
	config, err := s.access.Config()
	if err != nil {
		return nil, err
	}
	if s.access.Kubeconfig == "" {
		if _, err := os.Stat(inpod.Token(s.access.ServiceAccountDir)); err != nil {
			return nil, fmt.Errorf("read the service account's token: %w", err)
		}
	}
	config.QPS, config.Burst, config.UserAgent = requestsPerSecond, requestsAtOnce, userAgent
	return config, nil
}
