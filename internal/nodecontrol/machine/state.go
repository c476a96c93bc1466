package machine

import (
	"slices"

	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// Choice tells a pod that is to be in the proxy's care from others.
type Choice uint8

// The choices.
const (
	// Unsure: it cannot be told, so nothing is changed.
	Unsure Choice = iota
	// In: it is.
	In
	// Out: it is not.
	Out
	// Gone: the pod does not exist any more, or its containers have ended for good. What is in its namespace dies with it.
	Gone
)

// Wanted is the state to reach.
type Wanted struct {
	Choice Choice
	// Why is the code of any other Choice than In.
	Why status.Code
	// Status: the pod's state is reported in an annotation.
	Status bool
	// Probes: the host's connections to the pod are to be exempted.
	Probes bool
}

// Rules is the state of the rules in the pod's namespace.
type Rules uint8

// The states of the rules.
const (
	// RulesUnread: nobody has looked, since they are to be written anyway.
	RulesUnread Rules = iota
	RulesNone
	RulesSame
	RulesDiffer
	// RulesDraining: they redirect no new connection, and keep what those need that are through the proxy.
	RulesDraining
)

// Annotation is the value of the pod's annotation.
type Annotation uint8

// The values of the annotation.
const (
	SaysNothing Annotation = iota
	SaysPending
	SaysEnrolled
	SaysElse
)

// Actual is the state that was found. What could not be found out is an error of Observe, and never a state.
type Actual struct {
	// Namespace: the pod's namespace is known. If not, Rules and Listening mean nothing.
	Namespace bool
	// Noted: the namespace is on record as one that may have been captured.
	Noted bool
	// Ours: rules that are there are ours to remove.
	Ours  bool
	Rules Rules
	// Inbound: the wanted rules redirect what others send to the pod, so that without a proxy nothing gets in.
	Inbound bool
	// Listening: the proxy's listeners are all there.
	Listening bool
	// Deaf: for long, nobody has listened on the port by which peers come, in no family.
	Deaf bool
	// Handed: the proxy that is there now has accepted the pod with this namespace; while none is there, the last one had.
	Handed bool
	// Carries: the proxy carries connections of the pod. It is known only of a pod that is to be out and is no longer redirected.
	Carries bool
	// Due: the proxy is to let go of a pod that is to be out: it carries nothing any more and peers have had time to hear of it, or that
	// takes too long.
	Due bool
	// Held: a proxy may have the pod.
	Held bool
	// Proxy: a proxy could take a pod now.
	Proxy bool
	// Moves: connections move from one proxy to the next, or it is known why they cannot.
	Moves bool
	// Exempt: the pod's addresses are in the set of probes, and no other.
	Exempt bool
	// AnyExempt: the set has some address of the pod.
	AnyExempt  bool
	Annotation Annotation
}

// Captured reports whether the pod's traffic goes through a proxy that listens. Listeners alone do not tell whose they are: a
// process of the pod may have the same ports.
func (a Actual) Captured() bool {
	return a.Namespace && a.Rules == RulesSame && a.Listening && a.Handed
}

// heldBack reports whether a pod that is to be out stays with the proxy for a while: for what it carries, and for peers that use the tunnel
// until they hear of it.
func (a Actual) heldBack() bool {
	return a.Ours && a.Namespace && a.Held && !a.Due && (a.Rules == RulesNone || a.Rules == RulesDraining)
}

// ruled reports whether there may be rules.
func (a Actual) ruled() bool { return a.Rules != RulesNone }

// Action is one thing to do.
type Action uint8

// The actions.
const (
	ClearStatus Action = iota + 1
	SetPending
	SetEnrolled
	HandOver
	AwaitListeners
	SetSysctl
	PutProbes
	WriteRules
	DrainRules
	RemoveRules
	TakeBack
	DeleteProbes
	Forget
)

// steps are the names of the actions, and the codes of their failures.
var steps = [...]struct {
	name   string
	failed status.Code
}{
	ClearStatus: {"status", statuscode.StatusFailed}, SetPending: {"status", statuscode.StatusFailed}, SetEnrolled: {"status", statuscode.StatusFailed},
	HandOver: {"hand-over", statuscode.HandOverFailed}, AwaitListeners: {"listeners", statuscode.ListenersFailed}, SetSysctl: {"sysctl", statuscode.SysctlFailed},
	PutProbes: {"probes", statuscode.ProbesFailed}, WriteRules: {"rules", statuscode.RulesFailed}, DrainRules: {"drain", statuscode.DrainFailed},
	RemoveRules: {"remove-rules", statuscode.RemoveRulesFailed}, TakeBack: {"take-back", statuscode.TakeBackFailed},
	DeleteProbes: {"remove-probes", statuscode.RemoveProbesFailed}, Forget: {"forget", statuscode.ForgetFailed},
}

// String returns the action's step, as errors and metrics name it.
func (a Action) String() string { return steps[a].name }

// reports says that the action is about the annotation. If it fails, the others are done nevertheless.
func (a Action) reports() bool { return a == ClearStatus || a == SetPending || a == SetEnrolled }

// StepLook is the step of [Effects.Observe].
const StepLook = "look"

// Steps lists the names of all steps.
func Steps() (all []string) {
	for _, s := range steps[ClearStatus:] {
		if !slices.Contains(all, s.name) {
			all = append(all, s.name)
		}
	}
	return append(all, StepLook)
}

// Failed returns the code of the step's failure.
func (e *StepError) Failed() status.Code {
	for _, s := range steps {
		if s.name == e.Step {
			return s.failed
		}
	}
	return statuscode.LookFailed
}
