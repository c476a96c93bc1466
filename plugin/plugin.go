package plugin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/program/pluginlog"
	build "github.com/meshcni/meshcni/internal/program/version"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Plugin is the CNI plugin. Only Dialects and OpenPods are required; the zero value of every other field behaves like the meshcni binary.
// A Plugin keeps no state: Run may be called repeatedly and concurrently.
type Plugin struct {
	// Identity is the product's. Its Version is in the record of each attachment. The node agent's pods, whose names begin with its
	// AgentPrefix, pass unconditionally in the configured pod_namespace. In errors and the version line the plugin has the file name of
	// IO.Args[0], which is the "type" in network configurations. Default: meshcni's.
	Identity meshcni.Identity
	// Dialects are the meshes that the configuration's "dialect" may name, by their Name; it may name several. The first one
	// is used when the configuration names none. Required; builtin.All has this module's. STATUS says what is wrong with any of them
	// ([dialect.Validate]), and an ADD with what is wrong with the configured ones starts no pod that they may have.
	Dialects []dialect.Dialect
	// OpenPods returns the source of pods, as kubepod.Open does. ADD calls it for a pod that nothing else rules out, and STATUS
	// to see whether it works. DEL and GC never do. Its errors are not retried. With nil, pods that may be in the mesh are
	// refused.
	OpenPods func(kubeconfig string) (Pods, error)
	// OpenAgent returns the node's agent, which ADD asks before OpenPods unless the configuration has "agent": "off". It is
	// called for a pod that nothing else rules out. Default: an [agentsock.Client] of the socket in run_dir.
	OpenAgent func(netconf.Config) Agent
	// OpenNetNS opens the namespace that CNI_NETNS names. Its errors should be those of netnsexec.Open. Default:
	// [OpenNetNS].
	OpenNetNS func(path string) (NetNS, error)
	// Available reports to STATUS whether the backend works on this host. Default: what the agent has found out, else an attempt in an empty
	// network namespace, else, where that is not permitted, [apply.Available].
	Available func(ruleset.Backend) error
	// OpenLog returns the logger, and what closes it; either may be nil. Default: [OpenLog].
	OpenLog func(c netconf.Config, stderr io.Writer) (*slog.Logger, io.Closer)
	// OnEvent is called once at the end of every ADD, CHECK, DEL, GC and STATUS, after the log has its records and before
	// the result is written. A panic in it is ignored. Default: nothing.
	OnEvent func(context.Context, Event)
	// Attachments returns the store of the records that ADD leaves for CHECK. Default: [Records] of the run_dir. The
	// zero Store keeps none, and every CHECK then passes.
	Attachments func(netconf.Config) attachment.Store

	name string
}

// Pods is a source of pods, such as kubepod.Open makes. Pod is required; a source whose other functions are nil cannot do what they do.
type Pods struct {
	// Pod returns the pod. It may come from a cache: the plugin compares its UID with the one that the runtime passed and,
	// until add_deadline, asks again if they differ. A cache is not enough with a runtime that passes no K8S_POD_UID,
	// because a deleted pod of the same name looks the same.
	Pod func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Namespace returns a namespace. A dialect that may read them requires it (see [dialect.Dialect.ReadsNamespace]), and so does
	// "exclude_namespace_selector".
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	// PatchPodStatus applies a JSON merge patch to the pod's subresource "status", which allows annotations to be set but
	// not the pod's spec. "write_status" requires it.
	PatchPodStatus func(ctx context.Context, namespace, name string, patch []byte) error
	// Transient tells which errors are worth another try. Nil: each is.
	Transient func(error) bool
	// Ready returns why it could not answer now, and STATUS then fails with code 50. Nil: it always could.
	Ready func(context.Context) error
	// Close is called at the end. Nil: there is nothing to close.
	Close func()
}

// NetNS is a pod's network namespace, as the plugin needs it.
type NetNS interface {
	// Backend chooses what applies rules in the namespace.
	Backend(ctx context.Context, name ruleset.Backend) (Backend, error)
	// ID tells the namespace from others.
	ID() netnsexec.ID
	// Kernel returns the namespace's address families. What it cannot find out is an error.
	Kernel() (redirect.Kernel, error)
	// Addrs returns the global addresses of all interfaces, those of the named one first.
	Addrs(ifName string) ([]netip.Addr, error)
	// Bypasses returns the ways past all rules that the packets of a pod with the addresses have, or, if Unsure, may have.
	Bypasses(addrs []netip.Addr) ([]dialect.Bypass, error)
	Close() error
}

// Backend applies rules in one namespace. Every [apply.Backend] is one.
type Backend interface {
	Name() ruleset.Backend
	// Apply replaces the live rules, or fails and leaves them as they were.
	Apply(context.Context, ruleset.Ruleset) (apply.Result, error)
	// Check returns how the live rules differ.
	Check(context.Context, ruleset.Ruleset) ([]ruleset.Difference, error)
}

// IO is all that the program sees of its process. A nil field is empty, or discards what is written to it.
type IO struct {
	Args           []string            // as os.Args
	Getenv         func(string) string // as os.Getenv
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// OpenLog is the default of Plugin.OpenLog: JSON records on stderr, in run_dir/plugin.log and on the agent's socket
// run_dir/log.sock.
func OpenLog(c netconf.Config, stderr io.Writer) (*slog.Logger, io.Closer) {
	return pluginlog.Open(pluginlog.Options{Level: c.LogLevel.Level(), RunDir: c.RunDir, Stderr: stderr})
}

// version is not made before it is asked for: it takes a good part of a short run.
func (p Plugin) version() string {
	if p.Identity.Version != "" {
		return p.Identity.Version
	}
	return build.Long()
}

func (p Plugin) withDefaults(args []string) Plugin {
	p.Identity = p.Identity.WithDefaults()
	p.name = p.Identity.Plugin
	if len(args) > 0 {
		p.name = filepath.Base(args[0])
	}
	if p.OpenNetNS == nil {
		p.OpenNetNS = OpenNetNS
	}
	if p.OpenLog == nil {
		p.OpenLog = OpenLog
	}
	if p.OnEvent == nil {
		p.OnEvent = func(context.Context, Event) {}
	}
	if p.OpenAgent == nil {
		p.OpenAgent = func(c netconf.Config) Agent { return agentsock.Client{Path: filepath.Join(c.RunDir, agentsock.Name)} }
	}
	if p.Attachments == nil {
		p.Attachments = func(c netconf.Config) attachment.Store { return attachment.Open(c.RunDir) }
	}
	return p
}

func (o IO) withDefaults() IO {
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.Stdin == nil {
		o.Stdin = strings.NewReader("")
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	return o
}

// meshes returns the configured meshes with the namespaces that the configuration excludes.
func (p Plugin) meshes(c netconf.Config) (dialect.Set, error) {
	if err := p.Identity.Validate(); err != nil {
		return dialect.Set{}, err
	}
	s, err := dialect.Configure(p.Dialects, c)
	return s, errors.Join(err, mayAttach(c, s))
}
