// Package explain says what the meshes of a node make of one pod: the decision and its reason, where each setting comes from,
// the rules, and what becomes of typical packets, of a connection, and of saved rules beside ours. The command lines and
// the playground get it here, so they say the same. It does no I/O.
package explain

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
)

// Target is one pod and the plan for it.
type Target struct {
	dialect.Plan
	// Mesh is the dialect that has the pod; the first that was asked if none has.
	Mesh *dialect.Dialect
	// Known are the meshes that the program has: if the pod is of one that was not asked, the verdict says so.
	Known dialect.List
	// Pod is nil when flags define the rules.
	Pod *corev1.Pod
	// Addrs are the pod's addresses, and Kernel what its network namespace has. See [dialect.Subject].
	Addrs  []netip.Addr
	Kernel redirect.Kernel
	// Notes are the warnings of the decision, the plan and the caller, without bypasses.
	Notes []string
	// Template: the pod is what a workload's template says, before any injector has seen it.
	Template bool

	namespace *corev1.Namespace // that it was asked with
	proxyName string            // of its proxy container
}

// TemplateOnly is a note on a [Target.Template].
const TemplateOnly = "this is a workload's template: what a mesh's injector adds to each pod is not in it"

// Ask sets the plan, as the plugin does. Namespace is the pod's, or nil. For a refused pod it returns an error, and the
// target holds the decision.
func (t *Target) Ask(ctx context.Context, l dialect.List, namespace *corev1.Namespace, o dialect.Options) (err error) {
	t.namespace = namespace
	pod := t.Pod
	if pod == nil {
		pod = &corev1.Pod{}
	}
	t.Plan, err = l.Plan(ctx, dialect.Subject{Pod: pod, Namespace: namespace, Addrs: t.Addrs, Kernel: t.Kernel}, o)
	if t.Template {
		t.Notes = append(t.Notes, TemplateOnly)
	}
	t.Notes = slices.Concat(t.Notes, t.Decision.Warnings.Texts(), t.Plan.Warnings.Texts())
	if t.Pod == nil {
		return err
	}
	if d := l.Named(t.Plan.Dialect); d != nil {
		t.Mesh = d
	}
	if proxy := t.Mesh.Policy.Proxy(t.Pod); proxy != nil {
		t.proxyName = proxy.Name
	}
	return err
}

// Configuration names the installed configuration that counts.
type Configuration struct {
	// File is the network configuration with the plugin's entry. Empty: none counts, and None says why.
	File string `json:"file,omitempty"`
	None string `json:"none,omitempty"`
	// Loaded is the file that the runtime loads, if that is another.
	Loaded string `json:"loaded,omitempty"`
	// Flags are those that were typed, and so count instead of the file's settings.
	Flags []string `json:"flags,omitempty"`

	// Expected: this is a node, or the user named a file.
	Expected bool `json:"-"`
}

// NoConfiguration is that of who asks for none.
var NoConfiguration = Configuration{None: "--config none"}

// String is the configuration in one line.
func (c Configuration) String() string {
	if c.File == "" {
		return "configuration: none (" + c.None + "), so flags and defaults"
	}
	s := "configuration: " + c.File
	if c.Loaded != "" {
		s += ", although the runtime loads " + c.Loaded
	}
	if len(c.Flags) > 0 {
		s += ", but for " + strings.Join(c.Flags, ", ")
	}
	return s
}
