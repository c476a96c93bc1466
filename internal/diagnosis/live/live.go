package live

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// Pod is a pod of a cluster, with all that is known of it.
type Pod struct {
	Pod *corev1.Pod
	// Namespace is the pod's. Nil: not known.
	Namespace *corev1.Namespace
	// Identity is that of the product whose commands the remedies name.
	Identity meshcni.Identity

	// Explained says what should become of the pod. Zero: the error Undecided says why nothing decides.
	Explained explain.Explanation
	Undecided error
	// Meshes decide on it. Zero: not known.
	Meshes dialect.Set

	// Asking is the reason that the agent of the pod's node has not told of the node, such as [agents.ErrNoAgent] and [agents.ErrNoAgents], which have remedies of their own; Node is then zero. Nil: it has.
	Asking error
	Node   agentapi.Node
	// Agent is the agent's pod there. Zero: not known. AgentLabels is a label selector of the agents' pods.
	Agent       types.NamespacedName
	AgentLabels string

	OnNode OnNode
}

// OnNode tells of a pod on its node.
type OnNode struct {
	Node string `json:"node,omitempty"`
	// Unknown is the reason that the agent has not told. Then nothing below is known but what was read without it.
	Unknown string `json:"unknown,omitempty"`
	agentapi.Pod
	// Events are the pod's, the oldest first. EventsError is the reason that they are not known.
	Events      []Event `json:"events"`
	EventsError string  `json:"eventsError,omitempty"`
	// Hint says how live rules that could not be read can be. Empty: nothing can be done about it.
	Hint string `json:"-"`
}

// Event is one of the pod's events.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// Health tells pods on which somebody is to act from others.
type Health uint8

// The values of Health.
const (
	Well   Health = iota // nothing is wrong with it that is a matter of the mesh
	Wrong                // it needs attention
	Unsure               // it is not known whether something is wrong
)

// Now is the current state of a pod by everything that is known, and its root cause if there is any trouble.
type Now struct {
	// Code is one of status.Codes(status.KindNow).
	Code     status.Code `json:"code"`
	Sentence string      `json:"sentence"`
	Because  []string    `json:"because,omitempty"`
	// Do lists the remedies, in order.
	Do     []string `json:"do"`
	Health Health   `json:"-"`
}

// Trouble reports whether the state is to be told before what should become of the pod.
func (n Now) Trouble() bool { return n.Code != statuscode.Captured && n.Code != statuscode.Outside }

// WriteWith writes how the pod is, and what should become of it.
func (n Now) WriteWith(w io.Writer, v explain.Verdict) error {
	if !n.Trouble() {
		if n.Code == statuscode.Captured {
			v.Sentence, v.Because = n.Sentence, n.Because
		}
		_, err := v.WriteTo(w)
		return err
	}
	_, err := explain.Verdict{Sentence: n.Sentence, Because: n.Because, Do: n.Do}.WriteTo(w)
	said := []status.Code{status.CodeRefused, statuscode.WouldRefuse, statuscode.ExcludedInjected, statuscode.OtherDialect}
	if err != nil || v.Sentence == "" || slices.Contains(said, n.Code) || n.Sentence == v.Sentence {
		return err
	}
	out := visible.To(w)
	out.Printf("\nBy its settings: %s\n", v.Sentence) // the rest of the verdict is no matter while this is so
	if v.State == status.StateRefused {
		for _, because := range v.Because {
			out.Printf("  %s\n", because)
		}
	}
	return out.Err()
}

// Now finds out how the pod is.
func (p Pod) Now() Now {
	for _, look := range []func(Pod) *Now{
		Pod.lifecycle, Pod.refused, Pod.unasked, Pod.unstarted, Pod.redirection, Pod.disagreement, Pod.containers,
	} {
		if n := look(p); n != nil {
			if n.Code == statuscode.NoAgent || n.Code == statuscode.AgentSilent || n.Code == statuscode.NotInstalled {
				n.Because = append(p.sandboxFails(), n.Because...)
			}
			return *n
		}
	}
	if v := p.Explained.Verdict; v.Code == status.CodeNothingCaptured {
		return *now(statuscode.Bypassing, v.Sentence, nil, v.Do...)
	}
	if !p.selected() {
		return *now(statuscode.Outside, p.Explained.Verdict.Sentence, nil)
	}
	return p.captured()
}

// now is the state of a code. An empty sentence is that of the code's row. Scripts are to act on a state that needs attention; of the
// others it is unknown whether something is wrong.
func now(code status.Code, sentence string, because []string, do ...string) *Now {
	row, _ := status.Lookup(status.KindNow, code)
	n := &Now{Code: code, Sentence: cmp.Or(sentence, "This pod"+strings.TrimPrefix(row.Sentence, "it")+"."), Because: because, Do: append([]string{}, do...)}
	switch {
	case slices.Contains([]status.Code{statuscode.Captured, statuscode.Outside, statuscode.Ending, statuscode.NotRunning}, code): // a container is no matter of the mesh
	case row.Attention:
		n.Health = Wrong
	default:
		n.Health = Unsure
	}
	return n
}
