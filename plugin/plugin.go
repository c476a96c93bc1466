package plugin

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/pluginlog"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// DefaultAgentPrefix begins the names of the node agent's own pods.
const DefaultAgentPrefix = "meshcni-node-"

// Plugin is the CNI plugin. Only OpenPods has to be set; what else is zero is as the meshcni binary has it. A Plugin
// keeps no state: Run may be called any number of times, also at once.
type Plugin struct {
	// Name is what errors and the version line call the plugin; empty: the file name of IO.Args[0], which is the type
	// that network configurations know it by.
	Name string
	// Version is shown by --version and when no CNI_COMMAND is set; nil: "devel".
	Version func() string
	// Dialect returns the dialect of the configured name, which is empty when configuration has none, and the
	// namespaces to leave alone. An error is an invalid configuration. nil: this module's dialects. [Only] is for one
	// dialect of your own.
	Dialect func(name string, excludedNamespaces []string) (dialect.Dialect, error)
	// OpenPods returns what pods are read from. It is called for a pod that may be in the mesh, after nothing else
	// could tell, and by STATUS; never by DEL or GC. An error is not retried. nil: such pods are refused.
	OpenPods func(kubeconfig string) (Pods, error)
	// Transient says whether a failed read is worth another try; nil: each is.
	Transient func(error) bool
	// AgentPrefix begins the names of the agent's own pods, which pass in the configured pod_namespace; empty:
	// [DefaultAgentPrefix].
	AgentPrefix string
	// OpenNetNS opens the namespace of CNI_NETNS. Errors should be those of netnsexec.Open. nil: the kernel's.
	OpenNetNS func(path string) (NetNS, error)
	// Available says for STATUS whether rules could be applied by the backend on this host; nil: [apply.Available].
	Available func(apply.Name) error
	// OpenLog returns where log records go, and what closes it; either may be nil, which is none. nil: stderr and the files
	// in Config.RunDir.
	OpenLog func(Config, io.Writer) (*slog.Logger, io.Closer)
	// Attachments returns where ADD leaves its records, for CHECK. nil: the directory in Config.RunDir, see
	// [attachment.In]; the zero Store keeps none, so that CHECK passes whatever it is asked.
	Attachments func(Config) attachment.Store
}

// Pods is a source of pods; *kubepod.Client is one. If it has a method Close without results, that is called in the end.
type Pods interface {
	// Pod reads the pod with one request. Nobody caches it: the answer must be as new as the call.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// Patcher writes to pods; a source of pods that is one too serves the configuration key "write_status".
type Patcher interface {
	// PatchPodStatus applies a JSON merge patch with one request, of the subresource "status": annotations can be set
	// through it, and the pod's spec cannot.
	PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error
}

// Namespaces is what Pods must be as well for dialects with NeedsNamespace.
type Namespaces interface {
	// Namespace reads the namespace with one request.
	Namespace(ctx context.Context, name string) (*corev1.Namespace, error)
}

// NetNS is a pod's network namespace, as the plugin needs it.
type NetNS interface {
	// Backend chooses what puts rules into the namespace.
	Backend(ctx context.Context, name apply.Name) (Backend, error)
	// ID tells it from others.
	ID() netnsexec.ID
	// Kernel says which address families it has; what it cannot tell is an error.
	Kernel() (redirect.Kernel, error)
	// Addrs are the addresses of its interfaces, those of the named one first, without loopback and link-local ones.
	Addrs(ifName string) ([]netip.Addr, error)
	// Close lets go of it.
	Close() error
}

// Backend puts rules into one namespace; each [apply.Backend] is one.
type Backend interface {
	Name() apply.Name
	// Apply makes the live rules those of the ruleset, or leaves them as they were.
	Apply(context.Context, ruleset.Ruleset) (apply.Result, error)
	// Check returns how the live rules differ.
	Check(context.Context, ruleset.Ruleset) ([]ruleset.Difference, error)
}

// IO is all that the program sees of its process. What is nil is empty, or discarded.
type IO struct {
	Args           []string            // as os.Args
	Getenv         func(string) string // as os.Getenv
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

func (p *Plugin) withDefaults(o IO) (Plugin, IO) {
	q := *p
	if q.Name == "" && len(o.Args) > 0 {
		q.Name = filepath.Base(o.Args[0])
	}
	if q.Name == "" {
		q.Name = "meshcni"
	}
	if q.Version == nil {
		q.Version = func() string { return "devel" }
	}
	if q.Dialect == nil {
		q.Dialect = dialects.ByName
	}
	if q.Transient == nil {
		q.Transient = func(error) bool { return true }
	}
	if q.AgentPrefix == "" {
		q.AgentPrefix = DefaultAgentPrefix
	}
	if q.OpenNetNS == nil {
		q.OpenNetNS = openNetNS
	}
	if q.Available == nil {
		q.Available = func(name apply.Name) error { return apply.Available(apply.Options{Backend: name}) }
	}
	if q.OpenLog == nil {
		q.OpenLog = func(c Config, stderr io.Writer) (*slog.Logger, io.Closer) {
			return pluginlog.Open(pluginlog.Options{Level: c.LogLevel, RunDir: c.RunDir, Stderr: stderr})
		}
	}
	if q.Attachments == nil {
		q.Attachments = func(c Config) attachment.Store { return attachment.In(c.RunDir) }
	}
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.Stdin == nil {
		o.Stdin = eof{}
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	return q, o
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// Only is for Plugin.Dialect: it accepts configurations of the dialect d and those that name none.
func Only(d dialect.Dialect) func(string, []string) (dialect.Dialect, error) {
	return func(name string, excludedNamespaces []string) (dialect.Dialect, error) {
		if name != "" && name != d.Name {
			return dialect.Dialect{}, fail(types.ErrInvalidNetworkConfig, "dialect %q: this plugin has only %q", name, d.Name)
		}
		own := d
		own.Policy.ExcludedNamespaces = append(append([]string{}, d.Policy.ExcludedNamespaces...), excludedNamespaces...)
		return own, nil
	}
}
