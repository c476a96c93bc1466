package selection

import (
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// Reasons lists the codes of Decide, in the order in which it checks them. A dialect may add codes of its own, see [Policy.Decline].
func Reasons() []status.Code {
	return []status.Code{
		status.CodeExcludedNamespace, status.CodeHostNetwork, status.CodeInitContainer, status.CodeProxyDisabled, status.CodeNoProxy,
		status.CodeProxyType, status.CodeInjectDisabled, status.CodeHasSidecar, status.CodeNotEnabled, status.CodeNotInjected, status.CodeDryRun,
		status.CodeInterceptionNone, status.CodeNamespaceExcludedByLabel, status.CodeProxyMissing, status.CodeSelected,
	}
}

// Decision is the answer about one pod.
type Decision struct {
	// Selected reports whether the pod's traffic is redirected, or the pod refused: see [Policy.MissingProxy].
	Selected bool `json:"selected"`
	// Reason is the code of the decision's cause.
	Reason status.Code `json:"reason"`
	// Detail is the cause as a sentence, with the names and values that were found.
	Detail string `json:"detail"`
	// Undecided: the pod's Namespace was not given, and its labels may change the answer. Selected and Reason are then those of
	// a namespace without labels, which is no answer to go by.
	// It is also set with Err.
	Undecided bool `json:"undecided,omitempty"`
	// Err: it cannot be told whether the pod is in the mesh, because Policy.Decline panicked, the Policy is wrong, or there is no pod.
	// Selected is then true, so that nobody who does not look here leaves the pod alone.
	Err error `json:"-"`
	// Warnings lists settings that could not be read and so count as not set.
	Warnings warning.List `json:"warnings,omitempty"`
}
