package status

import (
	"slices"
	"time"
)

// ID names a pod. UID is the one that the runtime and the pod's control groups use: a static pod's copy at the API server has another.
type ID struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// State is the current state of a pod's redirection.
type State string

// The states. They are stable.
const (
	StateCaptured State = "captured" // its traffic goes through the mesh
	StateWaiting  State = "waiting"  // it is to be captured, and is not yet
	StateOutside  State = "outside"  // it is not in the mesh
	StateDrifted  State = "drifted"  // it was captured, and something of that is missing now
	StateFailed   State = "failed"   // it is in the mesh, bypasses it, and stays so without help
	StateRefused  State = "refused"  // its settings are wrong, or may not be: it does not start with them
	StateUnknown  State = "unknown"  // nothing says whether it is captured, or whether it is to be
)

// States lists all states.
func States() []State {
	return []State{StateCaptured, StateWaiting, StateOutside, StateDrifted, StateFailed, StateRefused, StateUnknown}
}

// Pod is the state of one pod, and the reason.
type Pod struct {
	ID
	// Dialect is the mesh that selected the pod; empty: none.
	Dialect string `json:"dialect,omitempty"`
	State   State  `json:"state"`
	// Reason says why. Detail says the same for people, with what was found.
	Reason Code   `json:"reason"`
	Detail string `json:"detail,omitempty"`
	// Since is the time of the change to this state. Zero: not known.
	Since time.Time `json:"since,omitzero"`
	// Backend, a name of package apply, applied the rules; empty: not known, or none.
	Backend string `json:"backend,omitempty"`
	// Bypasses are the ways past the mesh that the pod leaves open, the codes of package dialect. Empty: none is known.
	Bypasses []string `json:"bypasses,omitempty"`
	// ExchangeResets gives the reason that connections which the proxy has yet to accept are reset at an exchange of proxies, such
	// as that the kernel has no sysctl net.ipv4.tcp_migrate_req. Empty: they move to that one, or the pod is not captured.
	ExchangeResets string `json:"exchangeResets,omitempty"`
	// ConntrackPercent is the used share of the pod's connection tracking table: at 100, new connections stall. 0: less than one
	// percent, not known, or there is no limit.
	ConntrackPercent int `json:"conntrackPercent,omitempty"`
}

// Row returns the row of the pod's reason in its state. The zero Row: this version has none.
func (p Pod) Row() Row {
	for _, r := range Rows(p.Reason) {
		if slices.Contains(r.States, p.State) {
			return r
		}
	}
	return Row{}
}

// NeedsAttention reports whether somebody has to look at the pod.
func (p Pod) NeedsAttention() bool {
	switch r := p.Row(); p.State {
	case StateCaptured:
		return false
	case StateDrifted, StateFailed, StateRefused:
		return true
	case StateWaiting:
		return r.Attention || r.Code == ""
	default:
		return r.Attention
	}
}
