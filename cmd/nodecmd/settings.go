//go:build linux

package nodecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/repairflags"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/repair"
)

// settings are the agent's settings after flags, environment and configuration file.
type settings struct {
	nodeagent.Config

	detect                                 bool
	configFile, pluginConfigFile, configID string
	names                                  []string     // those of the identity that the deployment goes by, as FIELD=value
	live                                   liveSettings // as read
}

// register declares the flags. Their defaults are the values in s.
func (s *settings) register(fs *pflag.FlagSet, known []dialect.Dialect) {
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
		fs.BoolVar(&s.Alone, "alone", s.Alone, "put nothing into the network, and take back what is there: pods are captured at the runtime's hook alone (needs --runtime-hook=capture or auto)")
		fs.BoolVar(&s.Chained, "chained", s.Chained, "chain into the node's network; false: a configuration of the plugin alone, for Multus")
		fs.VarPF(cli.Text(&s.OwnFile, "auto|true|false"), "own-file", "", "keep a first-sorting list of our own; auto: once our entry was removed at a boot or twice").NoOptDefVal = "true"
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
		fs.Var(cli.Required(&s.Plugin.Dialects, "a,b"), "dialect", cli.DialectUsage(known))
		text(fs, &s.Plugin.Agent, "agent", "prefer|off|require", "whether the plugin gets the pod from this agent before the API server, never, or only (needs list and watch on pods, and --node-name)")
		text(fs, &s.Plugin.Backend, "backend", "name", "auto, iptables, iptables-nft, iptables-legacy or nftables")
		text(fs, &s.Plugin.LogLevel, "log-level", "level", "debug, info, warn or error, of plugin and agent")
		fs.Var(cli.Required(&s.Plugin.PodNamespace, "name"), "pod-namespace", "the agent's own namespace, where its pods start without credentials")
		text(fs, &s.Plugin.AddDeadline, "add-deadline", "duration", "bound of one ADD, 1s at least; a pod that cannot be captured by then fails to start")
		text(fs, &s.Plugin.UncapturedFamily, "uncaptured-family", "allow|drop", "what becomes of a pod's address family that the mesh does not capture")
		cli.Ambient(fs, &s.Plugin)
		fs.BoolVar(&s.Plugin.RefuseProxyUID, "refuse-proxy-uid", s.Plugin.RefuseProxyUID, "refuse a pod with a container that the rules take for the proxy")
		fs.BoolVar(&s.Plugin.RefuseNetRaw, "refuse-net-raw", s.Plugin.RefuseNetRaw, "refuse a pod with a container that may set the proxy's mark, also by the runtime's default")
		cli.Sandboxed(fs, &s.Plugin)
		fs.BoolVar(&s.Plugin.WriteStatus, "write-status", s.Plugin.WriteStatus, "say on the pod that its rules are in place, where the mesh has an annotation for it (needs patch on pods/status)")
		fs.BoolVar(&s.Plugin.ReadyWithoutAgent, "ready-without-agent", s.Plugin.ReadyWithoutAgent, "let the runtime start pods before the agent has run")
		text(fs, &s.pluginConfigFile, "plugin-config", "file", "a template for the plugin's entry instead of all of these (or CNI_NETWORK_CONFIG, the template itself)")
	})
	cli.Group(fs, "The container runtime's hook", func(fs *pflag.FlagSet) {
		text(fs, &s.RuntimeHook, "runtime-hook", "auto|off|gate|capture", "pods that the plugin has not captured: refuse their containers, or capture them before (needs SYS_ADMIN and NET_ADMIN); auto: what the agent may, where the socket is")
		text(fs, &s.NRISocket, "nri-socket", "path", "the runtime's socket for that (NRI)")
		text(fs, &s.HookDir, "nri-plugin-dir", "dir", "where the runtime looks for plugins that it starts itself, before any pod; empty: nothing is put or taken back there")
		text(fs, &s.Preinstall, "preinstall", "off|gate|capture", "what the plugin that the runtime starts itself does, agent or not; off: it is taken back")
	})
	cli.Group(fs, "Pods that run outside of the mesh", func(fs *pflag.FlagSet) {
		fs.BoolVar(&s.detect, "detect", s.detect, "find and report this node's pods in the mesh that started without the plugin")
		fs.Var(cli.Required((*string)(&s.Repair.Action), "mode"), "repair", "none, label, delete or repair; auto: evict pods that lost the plugin, if the API server confines the agent to its node")
		text(fs, &s.Node, "node-name", "name", "this node's name")
	})
	cli.Group(fs, "Pods of a mesh whose proxy is on the node", func(fs *pflag.FlagSet) {
		a := &s.Ambient
		fs.BoolVar(&a.Enabled, "ambient", a.Enabled, "hand pods of such a mesh to the node's proxy; without --dialect such meshes then come first")
		fs.Var(cli.Required(&a.ZDSSocket, "path"), "zds-socket", "the socket on which the node's proxy asks for pods")
		fs.Var(cli.Text(&a.VerifyInterval, "duration"), "ambient-verify-interval", "how often each such pod is looked at: rules, listeners, annotation, probes")
		fs.DurationVar(&a.DrainTimeout, "ambient-drain-timeout", a.DrainTimeout, "how long a pod that leaves stays with the proxy at most, while that carries its connections")
		fs.DurationVar(&a.DrainMinimum, "ambient-drain-minimum", a.DrainMinimum, "how long it stays there at least, within that, so that peers hear that it left")
		fs.BoolVar(&a.ReadyNeedsProxy, "ready-needs-proxy", a.ReadyNeedsProxy, "be ready only while a proxy is connected")
	})
	cli.Group(fs, "The agent itself", func(fs *pflag.FlagSet) {
		text(fs, &s.configFile, "config", "file", "these keys in a YAML file, watched; flags and environment come before it")
		text(fs, &s.configID, "config-id", "name", "a name of these settings: those that were last good count at the start only under the same name")
		fs.Var(cli.List(&s.names, "FIELD=value"), "identity", "names of the product that the deployment goes by; with others than its own the agent does not start")
		text(fs, &s.MetricsAddress, "metrics-address", "addr", "where /metrics is served; empty: nowhere")
		text(fs, &s.HealthAddress, "health-address", "addr", "where /healthz and /readyz are served; empty: nowhere")
		text(fs, &s.StartSocket, "start-socket", "path", "where the command started asks this agent whether it has begun its work; in a directory of the pod's own; empty: nowhere")
		fs.VarPF(cli.Text(&s.UninstallOnExit, "auto|true|false"), "uninstall-on-exit", "", "uninstall on SIGTERM; auto: when the agent's DaemonSet is being deleted, or does not want the node any more").NoOptDefVal = "true"
		text(fs, &s.DaemonSetName, "daemonset-name", "name", "the agent's own DaemonSet, in --pod-namespace, for --uninstall-on-exit=auto; it may get, list and watch it")
	})
	cli.BindEnv(fs, s.Identity.EnvPrefix, map[string][]string{
		"cni-conf-name": {"CNI_CONF_NAME"}, "pod-namespace": {"POD_NAMESPACE"}, "node-name": {"NODE_NAME"},
		"kubernetes-service-host": {"KUBERNETES_SERVICE_HOST"}, "kubernetes-service-port": {"KUBERNETES_SERVICE_PORT"},
		"kubernetes-service-protocol": {"KUBERNETES_SERVICE_PROTOCOL"},
	})
}

// defaults returns the settings without flags, environment and file.
func (p Program) defaults() settings {
	s := settings{Config: nodeagent.DefaultConfig(p.Identity), detect: true}
	s.Config.Config = p.Config
	return s
}

// resolve returns the settings, which are valid.
func (p Program) resolve(typed *pflag.FlagSet) (settings, error) {
	s, err := p.read(typed)
	return s, errors.Join(err, differs(s.Identity, s.names), s.Validate(p.Dialects))
}

// differs returns an error for each of names, as FIELD=value, that is not the identity's own. Variables under another prefix are not read,
// pods under another name are not taken for the agent's, and nothing else would say so.
func differs(id meshcni.Identity, names []string) error {
	id = id.WithDefaults()
	own := map[string]string{
		"Name": id.Name, "Plugin": id.Plugin, "Agent": id.Agent, "LabelPrefix": id.LabelPrefix, "MetricPrefix": id.MetricPrefix, "EnvPrefix": id.EnvPrefix,
	}
	var errs []error
	for _, each := range names {
		field, value, _ := strings.Cut(each, "=")
		if name, known := own[field]; !known {
			errs = append(errs, fmt.Errorf("identity %q: want one of %s, and a value", each, strings.Join(slices.Sorted(maps.Keys(own)), ", ")))
		} else if name != value {
			errs = append(errs, fmt.Errorf("identity: the deployment goes by %s %q, and this program's is %q", field, value, name))
		}
	}
	return errors.Join(errs...)
}

// read returns the settings. A flag on the command line wins over the environment, that over the configuration file,
// and that over the default. The error lists every value that cannot be read with its origin.
func (p Program) read(typed *pflag.FlagSet) (settings, error) {
	s := p.defaults()
	finer, errFiner := repairflags.FromEnv(p.Identity, p.Env)
	action := s.Repair.Action
	s.Repair, s.HostRoot, s.ProcRoot = finer.Options, finer.HostRoot, finer.ProcRoot
	s.Repair.Action, s.Repair.Node, s.Repair.HostRoot, s.Repair.ProcRoot = action, "", "", ""
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
			s.Plugin.Dialects = nodeagent.WithNodeProxies(p.Dialects)
		}
	}
	if s.Repair.Action == nodeagent.AutoAction {
		s.AutoEvict, s.Repair.Action = true, repair.ActionNone
		if said, _ := p.Env(p.Identity.Env("repair-spare-unmanaged")); said == "" {
			s.Repair.SpareUnmanaged = true
		}
	}
	errs = append(errs, s.readTemplate(p))
	s.live = liveSettings{ID: s.configID}
	if s.configFile != "" {
		s.live.Keys = keys
	}
	if s.pluginConfigFile != "" {
		s.live.Template = s.PluginConfig
	}
	if s.detect {
		s.Repair.Detect = &repair.Detection{Act: finer.Uncaptured}
	}
	if meshes, err := dialect.Configure(p.Dialects, s.Effective()); err == nil && p.invalid == nil { // else that is the fault
		s.Repair.Criteria, err = finer.CriteriaOf(meshes)
		for name, c := range s.Repair.Criteria {
			c.Policy = nil // the agent's to say, and no two policies are equal
			s.Repair.Criteria[name] = c
		}
		acts := s.Repair.Action != repair.ActionNone || s.Repair.VerifyInterval > 0
		if acts || s.Repair.Criteria == nil { // else that pods have no check is no reason not to capture them
			errs = append(errs, err)
		}
	}
	return s, errors.Join(errs...)
}

// readTemplate reads the template of the plugin's entry, if there is one.
func (s *settings) readTemplate(p Program) error {
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
