// Package dialect describes a mesh: which pods it redirects, how they are configured, and what its conventions are. A
// [Dialect] is a struct of data and one function, so a mesh can keep its own in its own repository; there is no
// registry and no interface.
//
// [Dialect.Plan] is the one way from a pod to its rules. The dialects of known
// meshes are in the packages below this one.
package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/warning"
)

// Dialect is a mesh. [Dialect.Validate] tells whether it can work.
type Dialect struct {
	// Name is the mesh's name in configuration: letters in lower case, digits and '-'.
	Name string
	// Policy selects the pods of the mesh.
	Policy selection.Policy
	// Build reads a selected pod's configuration. Its error holds everything that is wrong with it; of the Redirect beside one only Proxy
	// counts, by which the error of [Dialect.Plan] names the containers that are refused too. See [FromSchema].
	Build func(Input) (Reading, error)
	// Names tell the mesh's rules from others, for clean-up without a pod.
	Names redirect.Names
	// NeedsNamespace: Build itself reads Input.Namespace. What the Policy and the schemas of Build read of it need not be said;
	// see [Dialect.ReadsNamespace].
	NeedsNamespace bool
	// Applied are annotations that say that a pod's rules are in place. They are written only where configured, since
	// that takes one more request per pod and the right to patch pods.
	Applied map[string]string
	// Configure returns the dialect with the settings that the plugin's configuration has under its Name, and the keys that mean
	// nothing to it. Unknown keys begin with the Name, such as "ambient.ipv6", and so do those of err, which joins a [*KeyError] for each
	// wrong one. Nil: there are no settings.
	Configure func(d Dialect, settings json.RawMessage) (configured Dialect, unknown []string, err error)
	// Sandboxes configures the mesh without Kubernetes; nil: it cannot be. See [Dialect.ForSandbox].
	Sandboxes *Sandboxes
	// Check is the mesh's proof, in the pod, that redirection works.
	Check Check
	// Retired are the settings that earlier versions of the mesh read, and this dialect does not: a pod that has one is warned of.
	Retired []Retired
	// Injected makes of a pod that nobody has injected one as the mesh's injector leaves it: with the proxy's container and the marks by which
	// the Policy knows it. Checks of manifests call it (explain.CheckManifests). Nil: the first of the Policy's ProxyContainers, with the
	// first of its ProxyTypes, the StatusAnnotation, the first of the Traces, and the Required annotations. A proxy whose securityContext
	// names no user gets that of the pod's Redirect.
	Injected func(pod *corev1.Pod)
	// NodeProxy hands pods to the node's proxy; nil: the proxy is in the pod.
	NodeProxy *NodeProxy
	// Domains are those of the annotations that Build and Policy.Decline read besides the keys that the Policy names:
	// "istio.io" stands for istio.io/… and for traffic.sidecar.istio.io/…. They make an agent able to keep pods
	// larger than 64 KiB: of their containers, Build then reads only the names, security contexts, restart policies and
	// [Input.ProbePorts], but for the proxy's.
	// Empty: nothing is known of what it reads.
	Domains []string
}

// Retired is an annotation that has no effect any more.
type Retired struct {
	// Key is the annotation's, and Value the one that meant something; empty: any.
	Key, Value string
	// Now names its successor for people: "label istio.io/dataplane-mode=none".
	Now string
}

// Check is a pod's own check that it is redirected.
type Check struct {
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

// Input is the source of a Redirect.
type Input struct {
	// Pod has at least what a node's agent keeps of its pods, and a dialect must not read more: the names, UID, labels, annotations, times
	// and owner; of the spec what decides about users, namespaces, DNS, scheduling and restarts; of each container and init container
	// its name, image, command, arguments, ports, environment, restart policy and security context, and [Input.ProbePorts]; of the status
	// the phase, the addresses, and how the init containers are and were. See [Dialect.Domains].
	Pod *corev1.Pod
	// Namespace is the pod's, with at least its labels and annotations; nil unless NeedsNamespace is set or a schema of Build
	// reads it.
	Namespace *corev1.Namespace
	// Proxy is the proxy container, nil when the pod has none.
	Proxy *corev1.Container
	// Addrs are the pod's addresses, its primary one first.
	Addrs []netip.Addr

	look *look // to be told of what is read
}

// Values returns the parts of the pod that a [redirect.Schema] reads. Of several variables of one name the last counts,
// as it does to the process. A variable without a literal value counts as not set.
func (in Input) Values() redirect.Values {
	g := redirect.Values{Annotations: in.Pod.Annotations, Env: map[string]string{}}
	if in.Namespace != nil {
		if g.NamespaceAnnotations = in.Namespace.Annotations; g.NamespaceAnnotations == nil {
			g.NamespaceAnnotations = map[string]string{} // it has none, which is known
		}
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

// Reading is a pod's Redirect, and where it comes from.
type Reading struct {
	Redirect redirect.Redirect
	// Origins are the sources of its fields.
	Origins []redirect.Origin
	// Warnings lists settings that were ignored or tolerated.
	Warnings warning.List
	// ProxyContainers are more names of containers that run as the proxy, besides
	// the Policy's. They must be the exact names that the injector gave.
	ProxyContainers []string
}

// FromSchema makes a Build function of a schema, for a dialect that is data only.
func FromSchema(s redirect.Schema) func(Input) (Reading, error) {
	return func(in Input) (Reading, error) { return in.Read(s) }
}

// Read reads the pod by a schema. With an error, the Reading has the warnings, and who the proxy is, unless that is what is wrong.
func (in Input) Read(s redirect.Schema) (r Reading, err error) {
	if in.look != nil { // the pod has no settings
		in.look.schemas = append(in.look.schemas, s)
		return Reading{Redirect: s.Defaults.Clone()}, nil
	}
	r.Redirect, r.Origins, r.Warnings, err = s.Build(in.Values())
	if err != nil {
		s.Settings = slices.DeleteFunc(slices.Clone(s.Settings), func(s redirect.Setting) bool { return !strings.HasPrefix(s.Field, "proxy.") })
		if proxy, _, _, wrong := s.Build(in.Values()); wrong == nil {
			r.Redirect.Proxy = proxy.Proxy
		}
	}
	return r, err
}

// Decide reports whether the pod is in the mesh, and why. Without the Namespace the Decision may be Undecided; see
// [Dialect.ReadsNamespace].
func (d Dialect) Decide(pod *corev1.Pod, namespace *corev1.Namespace) selection.Decision {
	return d.Policy.Decide(pod, namespace)
}

// Redirect reads a selected pod's configuration. It is the dialect's own step of [Dialect.Plan], for its tests; the
// Plan also applies the operator's options. Addrs are all of the pod's addresses, its primary one first; without any
// the pod counts as IPv4 only. The Redirect is valid. Without the Namespace that the settings are inherited from,
// errors.Is(err, redirect.ErrNamespaceUnknown).
func (d Dialect) Redirect(pod *corev1.Pod, namespace *corev1.Namespace, addrs []netip.Addr) (Reading, error) {
	if pod == nil {
		return Reading{}, selection.ErrNoPod
	}
	b, err := d.build(pod, namespace, addrs)
	if err != nil {
		return Reading{}, err
	}
	if err := b.Redirect.Validate(); err != nil {
		return Reading{}, d.blame(pod, b, err)
	}
	return b, nil
}

// blame refuses a pod whose Redirect is not valid. If none of its settings is the cause, the dialect itself is wrong.
func (d Dialect) blame(pod *corev1.Pod, b Reading, err error) error {
	err = b.Blame(err)
	var blamed *SettingsError
	if !errors.As(err, &blamed) {
		err = d.invalid(err)
	}
	return d.refused(pod, err)
}

// build is Redirect without the last check, which making the rules repeats. With an error of the settings, the Reading says who the proxy is.
func (d Dialect) build(pod *corev1.Pod, namespace *corev1.Namespace, addrs []netip.Addr) (Reading, error) {
	if d.Build == nil {
		return Reading{}, d.invalid(errNoBuild)
	}
	if !d.inherits() {
		namespace = nil // as on a node, where nobody asks for it
	} else if namespace == nil {
		return Reading{}, d.unknown(pod, selection.Decision{Selected: true})
	}
	b, err := d.try(Input{Pod: pod, Namespace: namespace, Proxy: d.Policy.Proxy(pod), Addrs: addrs})
	if errors.Is(err, redirect.ErrNamespaceUnknown) {
		err = fmt.Errorf("%w; dialect %s reads it, and does not say so by NeedsNamespace", err, d.Name)
	}
	switch {
	case errors.Is(err, redirect.ErrSchema), errors.Is(err, errPanic):
		return Reading{}, d.refused(pod, d.invalid(err))
	case err != nil:
		err = d.refused(pod, err)
	case passes(b.Redirect.IPv4, b.Redirect.IPv6):
		err = d.blame(pod, b, errNoFamily)
	default:
		return b, nil
	}
	return Reading{Redirect: redirect.Redirect{Proxy: b.Redirect.Proxy}, ProxyContainers: b.ProxyContainers}, err
}

func (d Dialect) refused(pod *corev1.Pod, err error) error {
	return fmt.Errorf("%s configuration of pod %s/%s: %w", d.Name, pod.Namespace, pod.Name, err)
}
