//go:build linux

package nodecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/repair"
)

// Settings are the agent's settings after flags, environment and configuration file.
type Settings struct {
	installer.Config
	// Repair is about pods that started without redirection. The settings that it
	// shares with Config have the same values.
	Repair repaircmd.Settings
	// AutoEvict is --repair=auto: while the API server is proven to confine the agent's token to the node, the agent evicts pods that lost the
	// plugin, and pods whose own check says that they have no rules. Repair.Action is ActionNone with it.
	AutoEvict bool
	// MetricsAddress and HealthAddress are the addresses to listen on. Default: ":15014" and ":8000". Empty: no server.
	MetricsAddress, HealthAddress string
	// StartSocket is the path of a socket at which the agent says whether it has begun its work on the node, to the command started in
	// the same container; the agents of a node's two pods, in an update, may share the addresses above. Default: none.
	StartSocket string
	// UninstallOnExit lets SIGTERM uninstall the plugin, or not. Default: OnExitKeep.
	UninstallOnExit OnExit
	// DaemonSetName is the agent's DaemonSet in the namespace Plugin.PodNamespace,
	// which OnExitAuto watches. Default: meshcni-node.
	DaemonSetName string

	// PluginServiceAccount is the service account in the namespace Plugin.PodNamespace whose token the plugin gets; the agent must be
	// allowed to create tokens of it (create on serviceaccounts/token). It needs Repair.Node. Default: meshcni-plugin. Empty: the
	// plugin gets the agent's own token.
	PluginServiceAccount string
	// TokenLifetime is the validity of such a token: 10 minutes to 24 hours. It is renewed before half of that has passed.
	// Default: 4 hours.
	TokenLifetime netconf.Duration

	// Ambient is about pods whose mesh has its proxy on the node.
	Ambient Ambient

	configFile, pluginConfigFile, configID string
	live                                   liveSettings // as read
}

// OnExit is a value of --uninstall-on-exit: what SIGTERM does to the plugin.
type OnExit string

// The values of --uninstall-on-exit.
const (
	// OnExitKeep leaves the plugin on the node. It captures new pods, or makes them wait once its token is worthless.
	OnExitKeep OnExit = "false"
	// OnExitUninstall always uninstalls.
	OnExitUninstall OnExit = "true"
	// OnExitAuto uninstalls if the agent has seen the deletion of its DaemonSet or namespace. It leaves the plugin when
	// the pod is replaced or restarted, and when the reason is unknown.
	OnExitAuto OnExit = "auto"
)

// UnmarshalText accepts "auto" and what strconv.ParseBool does.
func (e *OnExit) UnmarshalText(text []byte) error {
	if *e = OnExit(text); *e == OnExitAuto {
		return nil
	}
	b, err := strconv.ParseBool(string(text))
	if err != nil {
		return fmt.Errorf("%q is not auto, true or false", text)
	}
	*e = OnExit(strconv.FormatBool(b))
	return nil
}

// register declares the flags. Their defaults are the values in s.
func (s *Settings) register(fs *pflag.FlagSet, known dialect.List) {
	fs.SortFlags = false
	text := func(fs *pflag.FlagSet, to any, name, kind, usage string) {
		fs.Var(cli.Text(to, kind), name, usage)
	}
	cli.Group(fs, "Where things are on the node", func(fs *pflag.FlagSet) {
		fs.Var(cli.List(&s.CNIBinDirs, "dir"), "cni-bin-dir", "the runtime's plugin directory; repeatable")
		text(fs, &s.CNIConfDir, "cni-conf-dir", "dir", "the runtime's configuration directory")
		text(fs, &s.CNICacheDir, "cni-cache-dir", "dir", "libcni's cache, which names the attachments that still need the binary")
		text(fs, &s.RunDir, "run-dir", "dir", "kubeconfig, log socket and the plugin's log; the same path on the host")
		text(fs, &s.BinSourceDir, "bin-source-dir", "dir", "where the plugin to install is")
	})
	cli.Group(fs, "How the plugin is put into the network", func(fs *pflag.FlagSet) {
		fs.BoolVar(&s.Chained, "chained", s.Chained, "chain into the node's network; false: a configuration of the plugin alone, for Multus")
		fs.VarPF(cli.Text(&s.OwnFile, "auto|true|false"), "own-file", "", "keep a first-sorting list of our own and leave others' files alone; auto: once another program was found to remove our entry, at a boot or twice").NoOptDefVal = "true"
		text(fs, &s.CNIConfName, "cni-conf-name", "file", "the file to chain into (default: the one the runtime loads), or the name of our own")
	})
	cli.Group(fs, "The API server", func(fs *pflag.FlagSet) {
		text(fs, &s.ServiceAccountDir, "service-account-dir", "dir", "the agent's token and ca.crt")
		text(fs, &s.PluginServiceAccount, "plugin-service-account", "name", "whose token the plugin gets, bound to this node (needs --node-name, and create on its serviceaccounts/token); empty: the agent's own")
		text(fs, &s.TokenLifetime, "token-lifetime", "duration", "how long that token is valid; renewed before half of it has passed")
		text(fs, &s.KubernetesHost, "kubernetes-service-host", "host", "the API server, for the plugin on the host")
		text(fs, &s.KubernetesPort, "kubernetes-service-port", "port", "its port")
		text(fs, &s.KubernetesProtocol, "kubernetes-service-protocol", "https|http", "its protocol")
	})
	cli.Group(fs, "What the plugin does (applied live from --config)", func(fs *pflag.FlagSet) {
		fs.Var(cli.List(&s.Plugin.Kubernetes.ExcludeNamespaces, "a,b"), "exclude-namespaces", "namespaces whose pods are never captured")
		text(fs, &s.Plugin.Kubernetes.ExcludeNamespaceSelector, "exclude-namespace-selector", "labels", "labels of namespaces whose pods are never captured, such as mesh=off (needs get on namespaces)")
		fs.Var(cli.Required(&s.Plugin.Dialects, "a,b"), "dialect", dialects.Usage(known))
		text(fs, &s.Plugin.Agent, "agent", "prefer|off|require", "whether the plugin gets the pod from this agent (needs list and watch on pods, and --node-name): prefer, before the API server; off, never; require, only from it")
		text(fs, &s.Plugin.Backend, "backend", "name", "auto, iptables, iptables-nft, iptables-legacy or nftables")
		text(fs, &s.Plugin.LogLevel, "log-level", "level", "debug, info, warn or error, of plugin and agent")
		fs.Var(cli.Required(&s.Plugin.PodNamespace, "name"), "pod-namespace", "the agent's own namespace, where its pods start without credentials")
		text(fs, &s.Plugin.AddDeadline, "add-deadline", "duration", "bound of one ADD; a pod that cannot be captured by then fails to start")
		text(fs, &s.Plugin.UncapturedFamily, "uncaptured-family", "allow|drop", "what becomes of a pod's address family that the mesh does not capture")
		cli.Ambient(fs, &s.Plugin.Ambient)
		fs.BoolVar(&s.Plugin.RefuseProxyUID, "refuse-proxy-uid", s.Plugin.RefuseProxyUID, "refuse a pod with a container that the rules take for the proxy")
		fs.BoolVar(&s.Plugin.RefuseNetRaw, "refuse-net-raw", s.Plugin.RefuseNetRaw, "refuse a pod with a container that may set the proxy's mark, also by the runtime's default")
		fs.BoolVar(&s.Plugin.WriteStatus, "write-status", s.Plugin.WriteStatus, "say on the pod that its rules are in place, where the mesh has an annotation for it (needs patch on pods/status)")
		fs.BoolVar(&s.Plugin.ReadyWithoutAgent, "ready-without-agent", s.Plugin.ReadyWithoutAgent, "tell the runtime that it may start pods before the agent has run (for an agent that is not on the host's network)")
		text(fs, &s.pluginConfigFile, "plugin-config", "file", "a template for the plugin's entry instead of all of these (or CNI_NETWORK_CONFIG, the template itself)")
	})
	cli.Group(fs, "Pods that run outside of the mesh", func(fs *pflag.FlagSet) {
		fs.BoolVar(&s.Repair.Detect, "detect", s.Repair.Detect, "find this node's pods in the mesh that started without the plugin, and say so: an event, a metric, a log line")
		fs.Var(cli.Required((*string)(&s.Repair.Action), "mode"), "repair", "none, label, delete or repair; auto: evict pods that lost the plugin, while the API server is seen to confine the agent to its node")
		text(fs, &s.Repair.Node, "node-name", "name", "this node's name")
	})
	cli.Group(fs, "Pods of a mesh whose proxy is on the node", s.Ambient.register)
	cli.Group(fs, "The agent itself", func(fs *pflag.FlagSet) {
		text(fs, &s.configFile, "config", "file", "these keys in a YAML file, watched; flags and environment come before it")
		text(fs, &s.configID, "config-id", "name", "which settings --config and --plugin-config have, if they come and go with the agent's pod: those that were last good count at the start only for these")
		text(fs, &s.MetricsAddress, "metrics-address", "addr", "where /metrics is served; empty: nowhere")
		text(fs, &s.HealthAddress, "health-address", "addr", "where /healthz and /readyz are served; empty: nowhere")
		text(fs, &s.StartSocket, "start-socket", "path", "where the command started asks this agent, and no other one of the node, whether it has begun its work; in a directory of the pod's own; empty: nowhere")
		fs.VarPF(cli.Text(&s.UninstallOnExit, "auto|true|false"), "uninstall-on-exit", "", "uninstall on SIGTERM: auto, when the agent's DaemonSet has been seen to be deleted; true, always; false: the plugin stays, pods wait").NoOptDefVal = "true"
		text(fs, &s.DaemonSetName, "daemonset-name", "name", "the agent's own DaemonSet, in --pod-namespace, for --uninstall-on-exit=auto; it may get, list and watch it")
	})
	cli.BindEnv(fs, cli.Prefix, map[string][]string{
		"cni-conf-name": {"CNI_CONF_NAME"}, "pod-namespace": {"POD_NAMESPACE"}, "node-name": {"NODE_NAME"},
		"kubernetes-service-host": {"KUBERNETES_SERVICE_HOST"}, "kubernetes-service-port": {"KUBERNETES_SERVICE_PORT"},
		"kubernetes-service-protocol": {"KUBERNETES_SERVICE_PROTOCOL"},
	})
}

// defaults returns the settings without flags, environment and file.
func (p Program) defaults() Settings {
	s := Settings{
		Config: p.Config, MetricsAddress: ":15014", HealthAddress: ":8000", UninstallOnExit: OnExitKeep, DaemonSetName: "meshcni-node",
		PluginServiceAccount: "meshcni-plugin", TokenLifetime: netconf.Duration(4 * time.Hour), Ambient: defaultAmbient(),
	}
	s.Repair.Action, s.Repair.Detect = repair.ActionNone, true
	return s
}

// resolve returns the settings. A flag on the command line wins over the environment, that over the configuration file,
// and that over the default. The error lists every bad value with its origin.
func (p Program) resolve(typed *pflag.FlagSet) (Settings, error) {
	s := p.defaults()
	finer, errFiner := repaircmd.FromEnv(p.Env)
	finer.Action, finer.Detect, finer.Node = s.Repair.Action, s.Repair.Detect, ""
	s.Repair = finer
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.register(fs, p.Dialects)
	usual := s.Plugin.Dialects
	s.Plugin.Dialects = nil // unless something names them: a flag, a variable or the file
	typed.Visit(func(f *pflag.Flag) {
		if fs.Lookup(f.Name) != nil {
			_ = fs.Set(f.Name, f.Value.String()) // cannot fail: typed has parsed it
		}
	})
	env := cli.Env(p.Env)
	config := fs.Lookup("config")
	if path, _, ok := env(config); ok && !config.Changed {
		s.configFile = path
	}
	file, keys, errFile := p.readConfigFile(s.configFile, fs)
	errs := []error{errFiner, errFile, cli.Fill(fs, env, file)}
	if len(s.Plugin.Dialects) == 0 {
		s.Plugin.Dialects = usual
		if s.Ambient.Enabled && !p.named {
			s.Plugin.Dialects = p.withNodeProxies()
		}
	}
	if s.Repair.Action == autoAction {
		s.AutoEvict, s.Repair.Action = true, repair.ActionNone
		if said, _ := p.Env("MESHCNI_REPAIR_SPARE_UNMANAGED"); said == "" {
			s.Repair.SpareUnmanaged = true
		}
	}
	s.Repair.API = repaircmd.API{Host: s.KubernetesHost, Port: s.KubernetesPort, Protocol: s.KubernetesProtocol, ServiceAccountDir: s.ServiceAccountDir}
	if err := s.readTemplate(p); err != nil {
		errs = append(errs, err)
	}
	s.live = liveSettings{ID: s.configID}
	if s.configFile != "" {
		s.live.Keys = keys
	}
	if s.pluginConfigFile != "" {
		s.live.Template = s.PluginConfig
	}
	s.Repair.Plugin, s.Repair.CNICacheDir, s.Repair.AgentPrefix = s.asInstalled(), s.CNICacheDir, s.AgentPrefix
	return s, errors.Join(append(errs, p.validate(s))...)
}

// asInstalled returns what repair and detection have to know of the plugin's configuration, as it will be on the node: a
// template may say otherwise than the flags.
func (s Settings) asInstalled() netconf.Config {
	c := s.Plugin
	if entry, err := s.Entry(); err == nil && s.PluginConfig != "" {
		if c, _, err = netconf.Parse(entry); err != nil {
			c = s.Plugin
		}
	}
	return netconf.Config{
		Type: c.Type, Dialects: c.Dialects, Backend: c.Backend, UncapturedFamily: c.UncapturedFamily, RefuseProxyUID: c.RefuseProxyUID, RefuseNetRaw: c.RefuseNetRaw,
		PodNamespace: c.PodNamespace, RunDir: s.RunDir, Ambient: c.Ambient, Kubernetes: netconf.Kubernetes{
			ExcludeNamespaces: c.Kubernetes.ExcludeNamespaces, ExcludeNamespaceSelector: c.Kubernetes.ExcludeNamespaceSelector,
		},
	}
}

// validate returns an error for every invalid setting, joined.
func (p Program) validate(s Settings) error {
	errs := []error{s.Config.Validate(), validateLifetime(s.TokenLifetime), s.Ambient.validate(s.Repair.Node)}
	work := p.invalid == nil // an agent of dialects that cannot work is never ready, and says why
	if work {
		_, err := dialects.OfValid(p.Dialects, s.Plugin)
		errs = append(errs, dialects.ByFlag(err, dialects.Flag))
	}
	if err := p.validateDialects(s); err != nil {
		errs = append(errs, fmt.Errorf("dialect: %w", err))
	} else if s.Repair.Acts() && work { // what is wrong with detection alone is no reason not to capture pods
		errs = append(errs, s.Repair.Validate(p.Dialects))
	}
	if s.AutoEvict && s.Repair.Node == "" {
		errs = append(errs, errors.New("repair=auto needs node-name"))
	}
	if s.Plugin.Agent == netconf.AgentRequire && s.Repair.Node == "" {
		errs = append(errs, errors.New("agent=require needs node-name"))
	}
	if s.Plugin.Agent == netconf.AgentOff && s.Ambient.Enabled {
		errs = append(errs, errors.New("agent=off does not go with ambient, whose pods only the node's agent can capture"))
	}
	if s.UninstallOnExit == OnExitAuto && (s.DaemonSetName == "" || s.Plugin.PodNamespace == "") {
		errs = append(errs, errors.New("uninstall-on-exit=auto needs daemonset-name and pod-namespace"))
	}
	return errors.Join(errs...)
}

// validateDialects returns an error for each dialect that this agent does not serve.
func (p Program) validateDialects(s Settings) error {
	known := dialect.List(p.Dialects)
	var errs []error
	_, err := known.Find(s.Plugin.Dialects...)
	installed, served := s.asInstalled().Dialects, false // a template may name others
	for _, name := range installed {
		d := known.Named(name)
		if d == nil || d.NodeProxy == nil {
			continue
		}
		if served = true; !s.Ambient.Enabled {
			errs = append(errs, fmt.Errorf("%q: its pods need an agent that hands their network namespaces to the node's proxy: set ambient", name))
		}
	}
	if s.Ambient.Enabled && !served && err == nil {
		errs = append(errs, fmt.Errorf("ambient is set, and none of %s has its proxy on the node: name one that has, as %s does", installed, p.withNodeProxies()))
	}
	return errors.Join(errs...)
}

// withNodeProxies is the default of --dialect with --ambient: the meshes whose proxy is on the node, and then the default without.
// The former say by labels which pods are theirs, and leave those with a sidecar alone.
func (p Program) withNodeProxies() (names netconf.Dialects) {
	for _, d := range p.Dialects {
		if d.NodeProxy != nil {
			names = append(names, d.Name)
		}
	}
	if first := p.Dialects[0].Name; !slices.Contains(names, first) {
		names = append(names, first)
	}
	return names
}

// readTemplate reads the template of the plugin's entry, if there is one.
func (s *Settings) readTemplate(p Program) error {
	if s.pluginConfigFile == "" {
		if template, ok := p.Env("CNI_NETWORK_CONFIG"); ok {
			s.PluginConfig = template
		}
		return nil
	}
	if p.last != nil {
		s.PluginConfig = p.last.Template
		return nil
	}
	data, err := os.ReadFile(s.pluginConfigFile)
	if err != nil {
		return fmt.Errorf("plugin-config: %w", err)
	}
	s.PluginConfig = string(data)
	return nil
}

// readConfigFile reads values of flags from a YAML file, or from a directory with a
// file for each key. It reads nothing if path is empty, or if the settings that were last good are asked for.
func (p Program) readConfigFile(path string, fs *pflag.FlagSet) (source cli.Source, raw map[string]any, err error) {
	raw = map[string]any{}
	var errs []error
	switch {
	case path == "":
	case p.last != nil:
		raw = p.last.Keys
	default:
		var err error
		if raw, err = readKeys(path); err != nil {
			errs = append(errs, fmt.Errorf("reading the configuration: %w", err))
		}
	}
	values := map[string]string{}
	for key, value := range raw {
		if key == "config" || fs.Lookup(key) == nil {
			errs = append(errs, fmt.Errorf("reading the configuration %s: no such key %q", path, key))
			continue
		}
		if _, text := value.(string); !text && value != nil && fs.Lookup(key).Value.Type() == cli.SelectorsType {
			list, err := json.Marshal(value)
			errs = append(errs, err)
			values[key] = string(list)
			continue
		}
		items, ok := value.([]any)
		if !ok {
			items = []any{value}
		}
		var texts []string
		for _, item := range items {
			switch item.(type) {
			case string, bool, float64, int64:
				texts = append(texts, fmt.Sprint(item))
			case nil:
			default:
				errs = append(errs, fmt.Errorf("reading the configuration %s: %q must be a text, a number, a truth value or a list of these", path, key))
			}
		}
		values[key] = strings.Join(texts, ",")
	}
	return func(f *pflag.Flag) (value, where string, ok bool) {
		value, ok = values[f.Name]
		return value, "the configuration file's " + f.Name, ok
	}, raw, errors.Join(errs...)
}

func readKeys(path string) (map[string]any, error) {
	raw := map[string]any{}
	entries, err := os.ReadDir(path)
	if err != nil { // not a directory
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := yaml.UnmarshalStrict(data, &raw); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return raw, nil
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "..") }) // the kubelet's links
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(path, e.Name()))
		if err != nil {
			return nil, err
		}
		raw[e.Name()] = strings.TrimSpace(string(data))
	}
	return raw, nil
}
