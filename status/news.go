package status

import "time"

// News is one thing that people should know of a node, or of one of its pods. A program has one list of them, from which its /readyz, its
// metrics, the node's events and its JSON are made.
type News struct {
	// Kind is [KindReadiness] if new pods of the mesh are not captured, [KindNotice] if an event tells of it, [KindPod] if it counts pods, which
	// have states of their own, and else [KindFinding].
	Kind Kind `json:"kind"`
	Code Code `json:"code"`
	// Text says it for people, in one line.
	Text string `json:"text"`
	// Where tells news of the same code apart, such as the type of another mesh's plugin. Empty: there is one of the code.
	Where string `json:"where,omitempty"`
	// Pod is whose event tells of it. Zero: the node's.
	Pod ID `json:"pod,omitzero"`
	// Since dates it, or when it was first seen. Zero: not known.
	Since time.Time `json:"since,omitzero"`
	// Attention: somebody has to look at it.
	Attention bool `json:"attention,omitempty"`
}

// String returns the code and the text.
func (n News) String() string { return string(n.Code) + ": " + n.Text }
