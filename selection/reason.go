package selection

import "github.com/meshcni/meshcni/warning"

// Reason is a stable code for why a pod is in the mesh or not. Codes are never
// renamed or reused. A dialect may add reasons of its own, see [Policy.Decline].
type Reason string

// The reasons of [Policy.Decide], in the order in which they are checked.
const (
	ExcludedNamespace Reason = "excluded-namespace" // the pod's namespace is in Policy.ExcludedNamespaces
	HostNetwork       Reason = "host-network"       // the pod has no network namespace of its own
	InitContainer     Reason = "init-container"     // an init container of the mesh sets the rules itself
	ProxyDisabled     Reason = "proxy-disabled"     // the proxy container's environment disables the mesh
	NoProxy           Reason = "no-proxy"           // the pod has no proxy container
	ProxyType         Reason = "proxy-type"         // the proxy is of a kind that takes no redirected traffic
	InjectDisabled    Reason = "inject-disabled"    // a label or annotation disables injection
	HasSidecar        Reason = "has-sidecar"        // the pod has a proxy of another kind, which captures its traffic
	NotEnabled        Reason = "not-enabled"        // no selector matches the labels of the pod and its namespace
	NotInjected       Reason = "not-injected"       // the injector's annotations are missing
	DryRun            Reason = "dry-run"            // the pod's configuration asks for a dry run, which applies no rules
	InterceptionNone  Reason = "interception-none"  // the pod has a proxy and asks for no redirection to it
	// NamespaceExcludedByLabel: the labels of the pod's namespace match Policy.ExcludedNamespaceLabels.
	NamespaceExcludedByLabel Reason = "namespace-excluded-by-label"
	Selected                 Reason = "selected" // none of the above; the pod's traffic is redirected
)

// Reasons that callers of Decide give where they need not call it.
const (
	NotKubernetes Reason = "not-kubernetes" // the runtime named no pod
	AgentPod      Reason = "agent-pod"      // the pod is the node agent's own
)

// Reasons lists the reasons of Decide, except those that dialects add.
var Reasons = []Reason{
	ExcludedNamespace, HostNetwork, InitContainer, ProxyDisabled, NoProxy,
	ProxyType, InjectDisabled, HasSidecar, NotEnabled, NotInjected, DryRun, InterceptionNone,
	NamespaceExcludedByLabel, Selected,
}

// Decision is the answer about one pod.
type Decision struct {
	// Selected reports whether the pod's traffic is redirected.
	Selected bool `json:"selected"`
	// Reason is the code of the decision's cause.
	Reason Reason `json:"reason"`
	// Detail is the cause as a sentence, with the names and values that were found.
	Detail string `json:"detail"`
	// Undecided: the pod's Namespace was not given, and its labels may change the answer. Selected and Reason are then those of
	// a namespace without labels, which is no answer to go by.
	// It is also set with Err.
	Undecided bool `json:"undecided,omitempty"`
	// Err: Policy.Decline panicked, so it cannot be told whether the pod is in the mesh. Selected is then true, so that nobody who
	// does not look here leaves the pod alone.
	Err error `json:"-"`
	// Warnings lists settings that could not be read and so count as not set.
	Warnings warning.List `json:"warnings,omitempty"`
}
