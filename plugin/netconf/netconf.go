// Package netconf is the plugin's entry in a CNI network configuration: its keys, their defaults, and how to read and write
// them.
//
// An installer fills in a [Config] and writes it with [Config.Marshal]. The plugin reads it back with [Parse]. The package
// needs only the standard library, this module's root and its package redirect.
package netconf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/redirect"
)

// Defaults of [Config].
const (
	defaultAgent       = AgentPrefer
	DefaultBackend     = Backend("auto")
	DefaultLogLevel    = LogLevel("info")
	DefaultAddDeadline = Duration(30 * time.Second)
	DefaultCNIBinDir   = "/opt/cni/bin"
)

// What the plugin and its agent agree on apart from the keys.
const (
	// DefaultDialect is the dialect of an entry that names none.
	DefaultDialect = "istio"
	// KubeconfigName is the file in run_dir that holds the plugin's credentials.
	KubeconfigName = "kubeconfig"
	// LogSocketName is the unixgram socket in run_dir on which the agent receives the plugin's log. One datagram holds one
	// record of at most MaxLogRecord bytes.
	LogSocketName = "log.sock"
	MaxLogRecord  = 64 << 10
	// AnnotationsCapability is the capability under which containerd and CRI-O pass a pod's annotations to a plugin whose
	// entry declares it.
	AnnotationsCapability = "io.kubernetes.cri.pod-annotations"
)

// Config is the plugin's configuration. A key that is absent, null or an empty string has its default.
type Config struct {
	// CNIVersion and Name belong to the network. A list has them, not its entries, so they are empty in an entry that is to
	// be chained.
	CNIVersion string `json:"cniVersion,omitempty"`
	Name       string `json:"name,omitempty"`
	// Type is the plugin's file name. Default: the identity's Plugin.
	Type string `json:"type"`
	// Dialects name the meshes, of which the first that selects a pod has it. Default: the plugin's own choice.
	Dialects Dialects `json:"dialect,omitempty"`
	// Agent selects whether to ask the node's agent for the pod. Default: DefaultAgent.
	Agent Agent `json:"agent,omitempty"`
	// Backend applies the rules. Default: DefaultBackend.
	Backend Backend `json:"backend"`
	// LogLevel is the lowest level that is logged. Default: DefaultLogLevel.
	LogLevel LogLevel `json:"log_level"`
	// RunDir holds the plugin's log and records, and the agent's sockets. Default: the identity's.
	RunDir string `json:"run_dir"`
	// PodNamespace is the namespace of the agent's own pods. Default: the identity's Namespace.
	PodNamespace string `json:"pod_namespace"`
	// AddDeadline limits how long an ADD or CHECK may take. It must be above 0. Default: DefaultAddDeadline.
	AddDeadline Duration `json:"add_deadline"`
	// UncapturedFamily is the treatment of an address family that the mesh does not capture. Default:
	// redirect.UncapturedAllow.
	UncapturedFamily redirect.UncapturedFamily `json:"uncaptured_family,omitempty"`
	// RefuseProxyUID and RefuseNetRaw refuse a pod with a container that the rules may take for the proxy; see
	// dialect.Options. Default: false.
	RefuseProxyUID bool `json:"refuse_proxy_uid,omitempty"`
	RefuseNetRaw   bool `json:"refuse_net_raw,omitempty"`
	// AllowSandboxed lets pods of sandboxed runtimes start, whose traffic bypasses the mesh; SandboxedClasses are the names of their
	// RuntimeClasses. See dialect.Options. Default: false, and dialect.SandboxedClasses.
	AllowSandboxed   bool     `json:"allow_sandboxed,omitempty"`
	SandboxedClasses []string `json:"sandboxed_classes,omitempty"`
	// WriteStatus annotates the pod once its rules are in place, if the mesh has an annotation for that. Default: false.
	WriteStatus bool `json:"write_status,omitempty"`
	// ReadyWithoutAgent makes STATUS succeed before the agent has written the kubeconfig. An agent that runs on the pod
	// network needs it: the runtime would otherwise not start any pod, including the agent's. Default: false.
	ReadyWithoutAgent bool `json:"ready_without_agent,omitempty"`

	Kubernetes Kubernetes `json:"kubernetes"`
	// Meshes are the keys that this package does not know, undecoded. A mesh's own settings are under its name: see
	// dialect.Configure. Default: none.
	Meshes map[string]json.RawMessage `json:"-"`
	// Annotations are all annotations of the pod, as the runtime passed them in runtimeConfig under AnnotationsCapability.
	// nil means that they are unknown.
	Annotations map[string]string `json:"-"`
	// PrevResult is the previous plugin's result, undecoded. nil means that there is none.
	PrevResult json.RawMessage `json:"-"`
}

// Kubernetes is the configuration's object of that name.
type Kubernetes struct {
	// Kubeconfig is the path of the plugin's credentials. Default: that in the identity's RunDir; Marshal writes
	// the file in RunDir.
	Kubeconfig string `json:"kubeconfig"`
	// ExcludeNamespaces are namespaces whose pods the plugin leaves alone without asking the API server. Spaces around a name, and
	// empty names, are dropped. Default: none.
	ExcludeNamespaces []string `json:"exclude_namespaces"`
	// ExcludeNamespaceSelector is a label selector for namespaces whose pods the plugin leaves alone, in the form of
	// selection.ParseSelector. Reading the labels takes one more request for each pod that nothing else rules out. Default: none.
	ExcludeNamespaceSelector string `json:"exclude_namespace_selector,omitempty"`
	// CNIBinDir tells readers where the plugin's binary is; the plugin itself does not use it. Default: DefaultCNIBinDir.
	CNIBinDir string `json:"cni_bin_dir"`
}

// Backend is auto, iptables, iptables-nft, iptables-legacy or nftables.
type Backend string

// UnmarshalText accepts the names of the backends.
func (b *Backend) UnmarshalText(text []byte) error {
	names := []string{"auto", "iptables", "iptables-nft", "iptables-legacy", "nftables"}
	if !slices.Contains(names, string(text)) {
		return fmt.Errorf("backend %q: not one of %s", text, strings.Join(names, ", "))
	}
	*b = Backend(text)
	return nil
}

// Agent is prefer, off or require.
type Agent string

// The values of "agent".
const (
	// AgentPrefer asks the agent for the pod, and the API server if the agent does not answer within 50 ms or does not have
	// the pod with the UID that the runtime passed.
	AgentPrefer Agent = "prefer"
	// AgentOff never asks it. Meshes whose proxy is on the node do not work then.
	AgentOff Agent = "off"
	// AgentRequire never asks the API server: a pod that the agent does not have does not start.
	AgentRequire Agent = "require"
)

// UnmarshalText accepts the three values, and "false", which is what YAML makes of an off without quotes.
func (a *Agent) UnmarshalText(text []byte) error {
	if string(text) == "false" {
		text = []byte(AgentOff)
	}
	if !slices.Contains([]Agent{AgentPrefer, AgentOff, AgentRequire}, Agent(text)) {
		return fmt.Errorf("agent %q: not one of prefer, off, require", text)
	}
	*a = Agent(text)
	return nil
}

// LogLevel is debug, info, warn or error.
type LogLevel string

// UnmarshalText accepts the names of the levels in upper and lower case.
func (l *LogLevel) UnmarshalText(text []byte) error {
	level := LogLevel(strings.ToLower(string(text)))
	if _, ok := levels[level]; !ok {
		return fmt.Errorf("log level %q: allowed are debug, info, warn, error", text)
	}
	*l = level
	return nil
}

// Level implements slog.Leveler. An unknown level counts as info.
func (l LogLevel) Level() slog.Level { return levels[l] }

var levels = map[LogLevel]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// Duration is a time.Duration written as text, such as "30s".
type Duration time.Duration

// String returns the text of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// UnmarshalText accepts the text of time.ParseDuration, if it is above 0.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err == nil && parsed <= 0 {
		err = errors.New("want a duration above 0")
	}
	if err == nil {
		*d = Duration(parsed)
	}
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// withDefaults fills in what is zero.
func (c Config) withDefaults(id meshcni.Identity) Config {
	c.Type = cmp.Or(c.Type, id.Plugin)
	c.Agent = cmp.Or(c.Agent, defaultAgent)
	c.Backend = cmp.Or(c.Backend, DefaultBackend)
	c.LogLevel = cmp.Or(c.LogLevel, DefaultLogLevel)
	c.RunDir = cmp.Or(c.RunDir, id.RunDir)
	c.PodNamespace = cmp.Or(c.PodNamespace, id.Namespace)
	c.AddDeadline = cmp.Or(c.AddDeadline, DefaultAddDeadline)
	c.UncapturedFamily = cmp.Or(c.UncapturedFamily, redirect.UncapturedAllow)
	c.Kubernetes.Kubeconfig = cmp.Or(c.Kubernetes.Kubeconfig, path.Join(c.RunDir, KubeconfigName))
	c.Kubernetes.CNIBinDir = cmp.Or(c.Kubernetes.CNIBinDir, DefaultCNIBinDir)
	return c
}

// Marshal returns the entry as indented JSON with a newline at the end. What is zero is written as its default, of meshcni's identity, or left out
// if it was added to the plugin after the first version, so that existing entries do not change. The entry declares
// AnnotationsCapability.
func (c Config) Marshal() []byte {
	return encode(c, "  ")
}

// MarshalJSON returns what [Config.Marshal] does, without the indentation.
func (c Config) MarshalJSON() ([]byte, error) {
	type keys Config
	c = c.withDefaults(meshcni.DefaultIdentity())
	if c.UncapturedFamily == redirect.UncapturedAllow {
		c.UncapturedFamily = "" // left out, like the bools that are false
	}
	if c.Agent == defaultAgent {
		c.Agent = ""
	}
	c.Kubernetes.ExcludeNamespaces = append([]string{}, trimmed(c.Kubernetes.ExcludeNamespaces)...) // never null
	text := bytes.TrimSuffix(encode(keys(c), ""), []byte("}\n"))
	for _, name := range slices.Sorted(maps.Keys(c.Meshes)) {
		text = fmt.Appendf(text, ",%s:%s", line(name), line(c.Meshes[name]))
	}
	return fmt.Appendf(text, `,"capabilities":{%q:true}}`, AnnotationsCapability), nil
}

// line encodes in one line, and as a string what is no JSON: the mesh refuses it.
func line(v any) []byte {
	if raw, ok := v.(json.RawMessage); ok && !json.Valid(raw) {
		v = string(raw)
	}
	return bytes.TrimSpace(encode(v, ""))
}

// encode returns JSON in which paths keep their '&' and '<'.
func encode(v any, indent string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		panic(err) // strings, bools and lists of strings always marshal
	}
	return b.Bytes()
}
