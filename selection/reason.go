package selection

// Reason is a stable code for why a pod is in the mesh or not. Codes are never
// renamed or reused.
type Reason string

// The reasons of [Policy.Decide], in the order in which they are looked for.
const (
	// ExcludedNamespace: the pod's namespace is in Policy.ExcludedNamespaces.
	ExcludedNamespace Reason = "excluded-namespace"
	// HostNetwork: the pod has no network namespace of its own.
	HostNetwork Reason = "host-network"
	// InitContainer: an init container of the mesh sets the rules itself.
	InitContainer Reason = "init-container"
	// ProxyDisabled: the proxy container's environment switches it off.
	ProxyDisabled Reason = "proxy-disabled"
	// NoProxy: the pod has no proxy container.
	NoProxy Reason = "no-proxy"
	// ProxyType: the proxy is of a kind that takes no redirected traffic.
	ProxyType Reason = "proxy-type"
	// InjectDisabled: a label or annotation says that the pod is not injected.
	InjectDisabled Reason = "inject-disabled"
	// HasSidecar: the pod has a proxy of another kind, which sees to it.
	HasSidecar Reason = "has-sidecar"
	// NotEnabled: no selector matches the pod's labels and its namespace's.
	NotEnabled Reason = "not-enabled"
	// NotInjected: the injector has not left its status on the pod.
	NotInjected Reason = "not-injected"
	// DryRun: the pod's configuration asks for a trial run, which applies nothing.
	DryRun Reason = "dry-run"
	// InterceptionNone: the pod has its proxy, and says that nothing is to be
	// redirected to it.
	InterceptionNone Reason = "interception-none"
	// Selected: none of the above; the pod's traffic is redirected.
	Selected Reason = "selected"
)

// The reasons of those who call Decide, for whom a pod's fate may be settled
// before there is a pod to look at.
const (
	// NotKubernetes: the runtime named no pod.
	NotKubernetes Reason = "not-kubernetes"
	// AgentPod: the pod is the node agent's own.
	AgentPod Reason = "agent-pod"
)

// Reasons lists every reason that Decide gives.
var Reasons = []Reason{
	ExcludedNamespace, HostNetwork, InitContainer, ProxyDisabled, NoProxy,
	ProxyType, InjectDisabled, HasSidecar, NotEnabled, NotInjected, DryRun, InterceptionNone, Selected,
}

// Decision is the answer about one pod.
type Decision struct {
	// Selected says whether the pod's traffic is to be redirected.
	Selected bool `json:"selected"`
	// Reason is why, as a code.
	Reason Reason `json:"reason"`
	// Detail is why, as a sentence that names what was found.
	Detail string `json:"detail"`
	// Warnings are settings of the pod that say nothing understandable and so
	// count as not set.
	Warnings []string `json:"warnings,omitempty"`
}
