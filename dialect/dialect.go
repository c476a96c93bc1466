// Package dialect describes a mesh: which pods it redirects, how they are configured, and what its conventions are. A
// [Dialect] is a struct of data and one function, so a mesh can keep its own in its own repository; there is no
// registry and no interface.
//
// [Dialect.Plan] is the one way from a pod to its rules. The dialects of known
// meshes are in the packages below this one.
package dialect

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// Dialect is a mesh.
type Dialect struct {
	// Name is the mesh's name in configuration, in lower case.
	Name string
	// Policy says which pods are in the mesh.
	Policy selection.Policy
	// Build reads a selected pod's configuration. Its error holds everything that is wrong with it. See [FromSchema].
	Build func(Input) (Result, error)
	// Names tell the mesh's rules from others, for clean-up without a pod.
	Names redirect.Names
	// NeedsNamespace makes callers fetch the pod's Namespace, one API call, for
	// Decide and Build; see [Dialect.MayReadNamespace] and [Dialect.ReadsNamespace].
	NeedsNamespace bool
	// Applied are annotations that say that a pod's rules are in place. They are written only where configured, since
	// that takes one more request per pod and the right to patch pods.
	Applied map[string]string
	// Sandboxes is how the mesh is configured without Kubernetes; nil: it is not. See [Dialect.ForSandbox].
	Sandboxes *Sandboxes
	// Validation is how the mesh proves, in the pod, that redirection works.
	Validation Validation
	// NodeProxy says how pods are handed to the node's proxy; nil: the proxy is in the pod.
	NodeProxy *NodeProxy
}

// Validation is how a pod finds out that it is not redirected.
type Validation struct {
	// Container is the name of the init container that checks.
	Container string
	// ExitCode is its exit code when redirection is missing, 1 to 255.
	ExitCode int
	// ProbePort is a port that nothing in the pod listens on. Connections to it reach the proxy when redirection works.
	ProbePort uint16
	// ProbeAddrs are the addresses that the check connects to, at most one a
	// family. Nobody has them. Empty: any such address.
	ProbeAddrs []netip.Addr
	// Outbound and Inbound are the proxy's ports, which the check listens on.
	Outbound, Inbound uint16
}

// Input is what a Redirect is built from.
type Input struct {
	// Pod has at least what [Trim] leaves. A dialect must not read more: a node's agent keeps no more of its pods.
	Pod *corev1.Pod
	// Namespace is the pod's, if the dialect needs it, with at least its labels and annotations.
	Namespace *corev1.Namespace
	// Proxy is the proxy container, nil when the pod has none.
	Proxy *corev1.Container
	// Addrs are the pod's addresses, its primary one first.
	Addrs []netip.Addr
}

// Values returns the parts of the pod that a [redirect.Schema] reads. Of several variables of one name the last counts,
// as it does to the process. A variable without a literal value counts as not set.
func (in Input) Values() redirect.Values {
	g := redirect.Values{Annotations: in.Pod.Annotations, Env: map[string]string{}}
	if in.Namespace != nil {
		g.NamespaceAnnotations = in.Namespace.Annotations
	}
	if in.Proxy == nil {
		return g
	}
	for _, e := range in.Proxy.Env {
		g.Env[e.Name] = e.Value
	}
	if sc := in.Proxy.SecurityContext; sc != nil {
		g.RunAsUser, g.RunAsGroup = sc.RunAsUser, sc.RunAsGroup
	}
	return g
}

// Result is a pod's Redirect, and where it comes from.
type Result struct {
	Redirect redirect.Redirect
	// Origins are where its fields come from.
	Origins []redirect.Origin
	// Warnings lists settings that were ignored or tolerated.
	Warnings redirect.Warnings
	// ProxyContainers are more names of containers that run as the proxy, besides
	// the Policy's. They must be the exact names that the injector gave.
	ProxyContainers []string
}

// FromSchema makes a Build function of a schema, for a dialect that is data only.
func FromSchema(s redirect.Schema) func(Input) (Result, error) {
	return func(in Input) (Result, error) { return in.Read(s) }
}

// Read reads the pod by a schema. With an error, the Result has the warnings only.
func (in Input) Read(s redirect.Schema) (r Result, err error) {
	r.Redirect, r.Origins, r.Warnings, err = s.Build(in.Values())
	return r, err
}

// Decide reports whether the pod is in the mesh, and why.
func (d Dialect) Decide(pod *corev1.Pod, namespace *corev1.Namespace) selection.Decision {
	return d.Policy.Decide(pod, namespace)
}

// MayReadNamespace reports whether any pod's Namespace is needed, by the mesh or by ExcludedNamespaceLabels of its Policy.
func (d Dialect) MayReadNamespace() bool {
	return d.NeedsNamespace || len(d.Policy.ExcludedNamespaceLabels) > 0
}

// ReadsNamespace reports whether the pod's Namespace is needed: not when the pod alone rules itself out.
func (d Dialect) ReadsNamespace(pod *corev1.Pod) bool {
	if !d.MayReadNamespace() {
		return false
	}
	alone := d.Policy.Decide(pod, nil)
	return alone.Selected || alone.Reason == selection.NotEnabled
}

// Redirect reads a selected pod's configuration. It is the dialect's own step of [Dialect.Plan], for its tests; the
// Plan also applies the operator's options. Addrs are all of the pod's addresses, its primary one first; without any
// the pod counts as IPv4 only. The Redirect is valid.
func (d Dialect) Redirect(pod *corev1.Pod, namespace *corev1.Namespace, addrs []netip.Addr) (Result, error) {
	b, err := d.build(pod, namespace, addrs)
	if err != nil {
		return Result{}, err
	}
	if err := b.Redirect.Validate(); err != nil {
		return Result{}, d.refused(pod, b.Blame(err))
	}
	return b, nil
}

// build is Redirect without the last check, which making the rules repeats.
func (d Dialect) build(pod *corev1.Pod, namespace *corev1.Namespace, addrs []netip.Addr) (Result, error) {
	b, err := d.Build(Input{Pod: pod, Namespace: namespace, Proxy: d.Policy.Proxy(pod), Addrs: addrs})
	if err != nil {
		return Result{}, d.refused(pod, err)
	}
	return b, nil
}

func (d Dialect) refused(pod *corev1.Pod, err error) error {
	return fmt.Errorf("%s configuration of pod %s/%s: %w", d.Name, pod.Namespace, pod.Name, err)
}
