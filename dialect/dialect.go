// Package dialect describes a mesh to the engine: which pods it redirects, how
// they are configured, and what its conventions are. A [Dialect] is a struct of
// data and one function, so a mesh can keep its own in its own repository;
// there is no registry to enter and no interface to satisfy.
//
// The dialects of known meshes are in the packages below this one. What they
// have in common is [Dialect.Plan], from a pod to its rules.
package dialect

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// Dialect is what the engine needs to know of a mesh.
type Dialect struct {
	// Name is what configuration calls it, in lower case.
	Name string
	// Policy says which pods are in the mesh.
	Policy selection.Policy
	// Build reads a selected pod's configuration. A pod that says something
	// wrong is an error with all that is wrong in it, never a guess.
	Build func(Input) (Result, error)
	// Names tell the mesh's rules from those of others, for clean-up where
	// there is no pod to build from.
	Names redirect.Names
	// NeedsNamespace makes callers fetch the Namespaces of pods, which costs an
	// API call each, for Decide and Build; see [Dialect.ReadsNamespace].
	NeedsNamespace bool
	// Applied are annotations that tell, on a pod, that its rules are in place. They
	// are written only where that is configured: it is one more request for each
	// pod, and a right to patch pods that the plugin otherwise does without.
	Applied map[string]string
	// Sandboxes is how the mesh is configured where there is no Kubernetes; nil:
	// it is not. See [Dialect.ForSandbox].
	Sandboxes *Sandboxes
	// Validation are the mesh's conventions about proving, in the pod, that
	// redirection works.
	Validation Validation
}

// Validation is how a pod finds out that it is not redirected.
type Validation struct {
	// Container is the name of the init container that checks.
	Container string
	// ExitCode is its exit code when redirection is missing, 1 to 255.
	ExitCode int
	// ProbePort is a port that nothing in the pod listens on; connections to
	// it must reach the proxy's port when redirection works.
	ProbePort uint16
	// ProbeAddrs are where the check connects, with ProbePort, one of a family at
	// most: addresses that nobody has. Empty: any such address will do.
	ProbeAddrs []netip.Addr
	// Servers are the proxy ports that the check listens on.
	Outbound, Inbound uint16
}

// Input is what a Redirect is built from.
type Input struct {
	Pod *corev1.Pod
	// Namespace is set when the dialect needs it.
	Namespace *corev1.Namespace
	// Proxy is the proxy container, nil when the pod has none.
	Proxy *corev1.Container
	// Addrs are the pod's addresses, its primary one first.
	Addrs []netip.Addr
}

// Values returns what the pod says, for a [redirect.Schema]. Of several variables
// of one name the last counts, as it does to the process; one whose value comes
// from elsewhere is not set.
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

// Result is a pod's Redirect and how it came about.
type Result struct {
	Redirect redirect.Redirect
	// Origins say where each setting comes from.
	Origins []redirect.Origin
	// Warnings are things that the pod says in vain, and that it gets wrong
	// without being refused for it.
	Warnings []string
	// ProxyContainers are the exact names that the mesh's injector has given to
	// containers of this pod that run as the proxy, besides the Policy's. Anybody
	// may choose a name that is like them.
	ProxyContainers []string
}

// Decide says whether the pod is in the mesh.
func (d Dialect) Decide(pod *corev1.Pod, namespace *corev1.Namespace) selection.Decision {
	return d.Policy.Decide(pod, namespace)
}

// ReadsNamespace reports whether the pod's Namespace object is needed: not when
// the pod alone rules itself out.
func (d Dialect) ReadsNamespace(pod *corev1.Pod) bool {
	if !d.NeedsNamespace {
		return false
	}
	alone := d.Policy.Decide(pod, nil)
	return alone.Selected || alone.Reason == selection.NotEnabled
}

// Redirect reads a selected pod's configuration: the step of [Dialect.Plan] that
// is the dialect's own, for its tests. What is done to a pod comes from the
// Plan, which knows the operator's options too. The addresses are all of the
// pod's, its primary one first; without any the pod is taken to have IPv4 only.
// The result is valid, so that it renders, within [redirect.MaxRules].
func (d Dialect) Redirect(pod *corev1.Pod, namespace *corev1.Namespace, addrs []netip.Addr) (Result, error) {
	b, err := d.Build(Input{Pod: pod, Namespace: namespace, Proxy: d.Policy.Proxy(pod), Addrs: addrs})
	if err != nil {
		return Result{}, fmt.Errorf("%s configuration of pod %s/%s: %w", d.Name, pod.Namespace, pod.Name, err)
	}
	if err := b.Redirect.Validate(); err != nil {
		return Result{}, fmt.Errorf("%s configuration of pod %s/%s: %w", d.Name, pod.Namespace, pod.Name, b.Blame(err))
	}
	return b, nil
}
