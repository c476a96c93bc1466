package selection

import "github.com/meshcni/meshcni/redirect"

// Reason is a stable code for why a pod is in the mesh or not. Codes are never
// renamed or reused. A dialect may add reasons of its own, see [Policy.Decline].
type Reason string

// The reasons of [Policy.Decide], in the order in which they are checked.
const (
	// ExcludedNamespace: the pod's namespace is in Policy.ExcludedNamespaces.
	ExcludedNamespace Reason = "excluded-namespace"
	// HostNetwork: the pod has no network namespace of its own.
	HostNetwork Reason = "host-network"
	// InitContainer: an init container of the mesh sets the rules itself.
	InitContainer Reason = "init-container"
	// ProxyDisabled: the proxy container's environment disables the mesh.
	ProxyDisabled Reason = "proxy-disabled"
	// NoProxy: the pod has no proxy container.
	NoProxy Reason = "no-proxy"
	// ProxyType: the proxy is of a kind that takes no redirected traffic.
	ProxyType Reason = "proxy-type"
	// InjectDisabled: a label or annotation disables injection.
	InjectDisabled Reason = "inject-disabled"
	// HasSidecar: the pod has a proxy of another kind, which captures its traffic.
	HasSidecar Reason = "has-sidecar"
	// NotEnabled: no selector matches the labels of the pod and its namespace.
	NotEnabled Reason = "not-enabled"
	// NotInjected: the injector's annotations are missing.
	NotInjected Reason = "not-injected"
	// DryRun: the pod's configuration asks for a dry run, which applies no rules.
	DryRun Reason = "dry-run"
	// InterceptionNone: the pod has a proxy and asks for no redirection to it.
	InterceptionNone Reason = "interception-none"
	// Selected: none of the above; the pod's traffic is redirected.
	Selected Reason = "selected"
)

// Reasons that callers of Decide give where they need not call it.
const (
	// NotKubernetes: the runtime named no pod.
	NotKubernetes Reason = "not-kubernetes"
	// AgentPod: the pod is the node agent's own.
	AgentPod Reason = "agent-pod"
)

// Reasons lists the reasons of Decide, except those that dialects add.
var Reasons = []Reason{
	ExcludedNamespace, HostNetwork, InitContainer, ProxyDisabled, NoProxy,
	ProxyType, InjectDisabled, HasSidecar, NotEnabled, NotInjected, DryRun, InterceptionNone, Selected,
}

// Decision is the answer about one pod.
type Decision struct {
	// Selected reports whether the pod's traffic is redirected.
	Selected bool `json:"selected"`
	// Reason is why, as a code.
	Reason Reason `json:"reason"`
	// Detail is why, as a sentence that names what was found.
	Detail string `json:"detail"`
	// Warnings lists settings that could not be read and so count as not set.
	Warnings redirect.Warnings `json:"warnings,omitempty"`
}
