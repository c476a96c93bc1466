//go:build linux

package nodecmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meshcni/meshcni/installer"
	"sigs.k8s.io/yaml"
)

// Settings are the agent's configuration, from wherever it came.
type Settings struct {
	installer.Config
	// Repair is what to do with pods that run outside of the mesh: none, label, delete or repair.
	Repair string
	// NodeName is this node's; repair needs it.
	NodeName string
	// MetricsAddress and HealthAddress are what to listen on; empty for not at all.
	MetricsAddress, HealthAddress string
	// UninstallOnExit is whether everything is taken back on SIGTERM.
	UninstallOnExit OnExit
	// DaemonSetName is the agent's own, in namespace PodNamespace; OnExitAuto watches it.
	DaemonSetName string

	configFile, pluginConfigFile string
}

// OnExit is what happens to the plugin on SIGTERM.
type OnExit string

// The values of --uninstall-on-exit.
const (
	// OnExitKeep leaves the plugin on the node: pods are captured by it, or wait.
	OnExitKeep OnExit = "false"
	// OnExitUninstall takes everything back, whatever the reason of the end.
	OnExitUninstall OnExit = "true"
	// OnExitAuto takes everything back when the agent's DaemonSet, or its namespace, has been seen to be deleted, and not
	// when its pod is only replaced or restarted. Where that cannot be known, the plugin stays.
	OnExitAuto OnExit = "auto"
)

// option is one setting: a flag, MESHCNI_ plus its name in upper snake case, and a key of the configuration file.
type option struct {
	group, name, usage string
	env                string // a second environment variable, as others call it
	kind               string // of the value, for the help
	set                func(*Settings, string) error
	get                func(*Settings) string
}

func text(group, name, kind, usage string, field func(*Settings) *string) option {
	return option{group: group, name: name, kind: kind, usage: usage,
		set: func(s *Settings, v string) error { *field(s) = v; return nil },
		get: func(s *Settings) string { return *field(s) }}
}

func list(group, name, kind, usage string, field func(*Settings) *[]string) option {
	return option{group: group, name: name, kind: kind, usage: usage,
		set: func(s *Settings, v string) error {
			*field(s) = nil
			for _, item := range strings.Split(v, ",") {
				if item = strings.TrimSpace(item); item != "" && !slices.Contains(*field(s), item) {
					*field(s) = append(*field(s), item)
				}
			}
			return nil
		},
		get: func(s *Settings) string { return strings.Join(*field(s), ",") }}
}

func boolean(group, name, usage string, field func(*Settings) *bool) option {
	return option{group: group, name: name, kind: "bool", usage: usage,
		set: func(s *Settings, v string) (err error) {
			if *field(s), err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			return nil
		},
		get: func(s *Settings) string { return strconv.FormatBool(*field(s)) }}
}

func (o option) alsoEnv(name string) option { o.env = name; return o }

const (
	gNode   = "Where things are on the node"
	gChain  = "How the plugin is put into the network"
	gAPI    = "The API server"
	gPlugin = "What the plugin does (applied live from --config)"
	gRepair = "Repair of pods that run outside of the mesh"
	gAgent  = "The agent itself"
)

var options = []option{
	list(gNode, "cni-bin-dir", "dir", "the runtime's plugin directory; repeatable", func(s *Settings) *[]string { return &s.CNIBinDirs }),
	text(gNode, "cni-conf-dir", "dir", "the runtime's configuration directory", func(s *Settings) *string { return &s.CNIConfDir }),
	text(gNode, "cni-cache-dir", "dir", "libcni's cache, which names the attachments that still need the binary", func(s *Settings) *string { return &s.CNICacheDir }),
	text(gNode, "run-dir", "dir", "kubeconfig, log socket and the plugin's log; the same path on the host", func(s *Settings) *string { return &s.RunDir }),
	text(gNode, "bin-source-dir", "dir", "where the plugin to install is", func(s *Settings) *string { return &s.BinSourceDir }),

	boolean(gChain, "chained", "chain into the node's network; false: a configuration of the plugin alone, for Multus", func(s *Settings) *bool { return &s.Chained }),
	boolean(gChain, "own-file", "keep a first-sorting list of our own and leave others' files alone", func(s *Settings) *bool { return &s.OwnFile }),
	text(gChain, "cni-conf-name", "file", "the file to chain into (default: the one the runtime loads), or the name of our own", func(s *Settings) *string { return &s.CNIConfName }).alsoEnv("CNI_CONF_NAME"),

	text(gAPI, "service-account-dir", "dir", "token and ca.crt", func(s *Settings) *string { return &s.ServiceAccountDir }),
	text(gAPI, "kubernetes-service-host", "host", "the API server, for the plugin on the host", func(s *Settings) *string { return &s.KubernetesHost }).alsoEnv("KUBERNETES_SERVICE_HOST"),
	text(gAPI, "kubernetes-service-port", "port", "its port", func(s *Settings) *string { return &s.KubernetesPort }).alsoEnv("KUBERNETES_SERVICE_PORT"),
	text(gAPI, "kubernetes-service-protocol", "https|http", "its protocol", func(s *Settings) *string { return &s.KubernetesProtocol }).alsoEnv("KUBERNETES_SERVICE_PROTOCOL"),

	list(gPlugin, "exclude-namespaces", "a,b", "namespaces whose pods are never captured", func(s *Settings) *[]string { return &s.ExcludeNamespaces }),
	text(gPlugin, "dialect", "name", "istio, linkerd, kuma or consul", func(s *Settings) *string { return &s.Dialect }),
	text(gPlugin, "backend", "name", "auto, iptables, iptables-nft, iptables-legacy or nftables", func(s *Settings) *string { return &s.Backend }),
	text(gPlugin, "log-level", "level", "debug, info, warn or error, of plugin and agent", func(s *Settings) *string { return &s.LogLevel }),
	text(gPlugin, "pod-namespace", "name", "the agent's own namespace, where its pods start without credentials", func(s *Settings) *string { return &s.PodNamespace }).alsoEnv("POD_NAMESPACE"),
	{
		group: gPlugin, name: "add-deadline", kind: "duration", usage: "bound of one ADD; a pod that cannot be captured by then fails to start",
		set: func(s *Settings, v string) (err error) {
			s.AddDeadline, err = time.ParseDuration(v)
			return err
		},
		get: func(s *Settings) string { return s.AddDeadline.String() },
	},
	text(gPlugin, "uncaptured-family", "allow|drop", "what becomes of a pod's address family that the mesh does not capture", func(s *Settings) *string { return (*string)(&s.UncapturedFamily) }),
	boolean(gPlugin, "refuse-proxy-uid", "refuse a pod with a container that the rules take for the proxy", func(s *Settings) *bool { return &s.RefuseProxyUID }),
	boolean(gPlugin, "write-status", "say on the pod that its rules are in place, where the mesh has an annotation for it (needs patch on pods/status)", func(s *Settings) *bool { return &s.WriteStatus }),
	boolean(gPlugin, "ready-without-agent", "tell the runtime that it may start pods before the agent has run (for an agent that is not on the host's network)", func(s *Settings) *bool { return &s.ReadyWithoutAgent }),
	text(gPlugin, "plugin-config", "file", "a template for the plugin's entry instead of all of these (or CNI_NETWORK_CONFIG, the template itself)", func(s *Settings) *string { return &s.pluginConfigFile }),

	text(gRepair, "repair", "mode", "none, label, delete or repair", func(s *Settings) *string { return &s.Repair }),
	text(gRepair, "node-name", "name", "this node's name", func(s *Settings) *string { return &s.NodeName }).alsoEnv("NODE_NAME"),

	text(gAgent, "config", "file", "these keys in a YAML file, watched; flags and environment come before it", func(s *Settings) *string { return &s.configFile }),
	text(gAgent, "metrics-address", "addr", "where /metrics is served; empty: nowhere", func(s *Settings) *string { return &s.MetricsAddress }),
	text(gAgent, "health-address", "addr", "where /healthz and /readyz are served; empty: nowhere", func(s *Settings) *string { return &s.HealthAddress }),
	{
		group: gAgent, name: "uninstall-on-exit", kind: "auto|true|false",
		usage: "uninstall on SIGTERM: auto, when the agent's DaemonSet has been seen to be deleted; true, always; false: the plugin stays, pods wait",
		set: func(s *Settings, v string) error {
			if v == string(OnExitAuto) {
				s.UninstallOnExit = OnExitAuto
				return nil
			}
			b, err := strconv.ParseBool(v)
			if err != nil {
				return fmt.Errorf("%q is not auto, true or false", v)
			}
			s.UninstallOnExit = OnExit(strconv.FormatBool(b))
			return nil
		},
		get: func(s *Settings) string { return string(s.UninstallOnExit) },
	},
	text(gAgent, "daemonset-name", "name", "the agent's own DaemonSet, in --pod-namespace, for --uninstall-on-exit=auto; it may get, list and watch it", func(s *Settings) *string { return &s.DaemonSetName }),
}

func defaults() Settings {
	return Settings{
		Config: installer.Default(), Repair: "none", MetricsAddress: ":15014", HealthAddress: ":8000",
		UninstallOnExit: OnExitKeep, DaemonSetName: "meshcni-node",
	}
}

func (o option) envName() string {
	return "MESHCNI_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// resolve makes the settings: a flag comes before the environment, that before the file, that before the default. Every bad
// value is reported, with where it came from.
func resolve(flags map[string]string, env func(string) (string, bool)) (Settings, error) {
	s := defaults()
	var errs []error
	lookup := func(o option) (value, from string, ok bool) {
		if v, ok := flags[o.name]; ok {
			return v, "--" + o.name, true
		}
		for _, name := range []string{o.envName(), o.env} {
			if v, ok := env(name); ok && name != "" && v != "" {
				return v, name, true
			}
		}
		return "", "", false
	}
	var file map[string]string
	for _, o := range options {
		if o.name == "config" {
			if path, _, ok := lookup(o); ok && path != "" {
				var err error
				if file, err = readConfigFile(path); err != nil {
					return s, err
				}
			}
		}
	}
	for _, o := range options {
		value, from, ok := lookup(o)
		if !ok {
			if value, ok = file[o.name]; !ok {
				continue
			}
			from = "the configuration file's " + o.name
		}
		if err := o.set(&s, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", from, err))
		}
	}
	if !slices.Contains([]string{"none", "label", "delete", "repair"}, s.Repair) {
		errs = append(errs, fmt.Errorf("repair %q: must be one of none, label, delete, repair", s.Repair))
	}
	if s.Repair != "none" && s.NodeName == "" {
		errs = append(errs, errors.New("repair needs node-name"))
	}
	if s.UninstallOnExit == OnExitAuto && (s.DaemonSetName == "" || s.PodNamespace == "") {
		errs = append(errs, errors.New("uninstall-on-exit=auto needs daemonset-name and pod-namespace"))
	}
	switch template, ok := env("CNI_NETWORK_CONFIG"); {
	case s.pluginConfigFile != "":
		data, err := os.ReadFile(s.pluginConfigFile)
		if err != nil {
			errs = append(errs, fmt.Errorf("plugin-config: %w", err))
		}
		s.PluginConfig = string(data)
	case ok:
		s.PluginConfig = template
	}
	return s, errors.Join(append(errs, s.Validate())...)
}

// readConfigFile reads keys and values: of a YAML file, or of a directory with a file for each key.
func readConfigFile(path string) (map[string]string, error) {
	raw := map[string]any{}
	if entries, err := os.ReadDir(path); err == nil {
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "..") { // the kubelet's links
				continue
			}
			data, err := os.ReadFile(filepath.Join(path, e.Name()))
			if err != nil {
				return nil, fmt.Errorf("reading the configuration: %w", err)
			}
			raw[e.Name()] = strings.TrimSpace(string(data))
		}
	} else {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		if err := yaml.UnmarshalStrict(data, &raw); err != nil {
			return nil, fmt.Errorf("reading the configuration %s: %w", path, err)
		}
	}
	out := map[string]string{}
	var errs []error
	for key, value := range raw {
		if key == "config" || !slices.ContainsFunc(options, func(o option) bool { return o.name == key }) {
			errs = append(errs, fmt.Errorf("reading the configuration %s: no such key %q", path, key))
			continue
		}
		items := []any{value}
		if l, ok := value.([]any); ok {
			items = l
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
		out[key] = strings.Join(texts, ",")
	}
	return out, errors.Join(errs...)
}
