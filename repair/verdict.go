package repair

import (
	"slices"

	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// evidence is what there is of a pod by which to tell whether it is captured. The same evidence always gives the same verdict.
type evidence struct {
	// in: a mesh of sidecars has the pod, or may have it, and detection has looked. unsure is why that cannot be told; empty: it can.
	in     bool
	unsure status.Code
	// other: the pod is of a mesh that the node is not configured for.
	other bool
	// trace is what the node has of it: a record of the pod as selected or passed over, an attachment with our type or without, or what keeps
	// that from being known.
	trace status.Code
	// check is what the pod's own check says, or why it is not looked at.
	check status.Code
	// rules are the result of the latest verification; empty: there was none. drifted: an earlier one found them to differ, and none since that
	// they do not.
	rules   status.Code
	drifted bool
	// part is what its own rules, or ways past all of them, leave out of it: no state, or what it amounts to. past: it is by such a way.
	part status.Pod
	past bool

	// acts: an action concerns the pods that detection finds, if they lost the plugin or that does not matter. handled: the pod has the label
	// that says so.
	acts, relied, handled bool
}

// verdict is the conclusion from the evidence.
type verdict struct {
	state  status.State // zero: there is nothing to say of it
	reason status.Code
	counts string // the state of meshcni_pods
	// finding is the pod's check, or what stands in its place: statuscode.NotCaptured, or that this is handled already.
	finding status.Code
	// broken: something is to be done about the pod, because of the finding. candidate: it could be.
	broken, candidate bool
}

// traceStates are the states of pods of which the node has a trace, or none, if nothing else is known.
var traceStates = map[status.Code]status.State{
	statuscode.Recorded: status.StateCaptured, statuscode.Attached: status.StateCaptured,
	statuscode.PassedOver: status.StateFailed, status.CodeNotCalled: status.StateFailed,
	statuscode.Delegated: status.StateUnknown, statuscode.Unreadable: status.StateUnknown, statuscode.NoTrace: status.StateUnknown,
}

// captured tells whether the pod's traffic goes to its rules: by its trace, else by its check, else by its rules.
func (e evidence) captured() (status.State, status.Code) {
	known := traceStates[e.trace]
	switch {
	case !e.in:
		return "", ""
	case e.unsure != "":
		return status.StateUnknown, e.unsure
	case known == status.StateCaptured:
		return known, e.trace
	case e.checkPassed():
		return status.StateCaptured, statuscode.CheckPassed
	case e.rules == statuscode.Intact, e.rules == statuscode.Restored:
		return status.StateCaptured, statuscode.Verified
	case known == status.StateUnknown && e.rules == statuscode.Uncaptured:
		return status.StateFailed, statuscode.NoRules
	}
	return known, e.trace
}

func (e evidence) checkPassed() bool {
	return e.check == statuscode.CheckPassed || e.check == statuscode.Recovered
}

// The checks of pods that are left out, and those besides of pods that have none.
var (
	leftOutCodes = []status.Code{statuscode.NotMatched, statuscode.MirrorPod, statuscode.Deleting, statuscode.Completed}
	noCheckCodes = []status.Code{statuscode.NoCheck, statuscode.NotSelected}
)

// verdict weighs the evidence.
func (e evidence) verdict() (v verdict) {
	captured, reason := e.captured()
	v.state, v.reason = captured, reason
	whole := captured == status.StateCaptured
	switch {
	case captured == status.StateFailed:
	case e.past, whole && !e.drifted && e.part.State == status.StateFailed:
		v.state, v.reason = e.part.State, e.part.Reason
	case e.drifted && e.in:
		v.state, v.reason = status.StateDrifted, statuscode.Rules
	case whole && e.rules == statuscode.CannotTell:
		v.state, v.reason = status.StateUnknown, statuscode.CannotTell
	case whole && e.part.State != "":
		v.state, v.reason = e.part.State, e.part.Reason
	}
	e.act(&v, captured)
	v.counts = e.count(v, captured)
	return v
}

// act tells whether something is to be done about the pod: its check says that it has no rules, or detection does where that counts.
func (e evidence) act(v *verdict, captured status.State) {
	out := slices.Contains(leftOutCodes, e.check)
	v.candidate = !out && !slices.Contains(noCheckCodes, e.check)
	v.finding, v.broken = e.check, e.check == statuscode.CheckFailed
	if v.broken || out || !e.acts || captured == "" {
		return
	}
	v.candidate = true
	switch {
	case captured != status.StateFailed, !e.relied, e.check == statuscode.Handled:
	case e.handled:
		v.finding = statuscode.Handled
	default:
		v.finding, v.broken = statuscode.NotCaptured, true
	}
}

// count returns the state in which a pod counts. A pod whose check says that it has no rules does not run past the mesh: it waits.
func (e evidence) count(v verdict, captured status.State) string {
	switch {
	case e.check == statuscode.CheckFailed:
		return countBroken
	case captured == status.StateFailed:
		return countUncaptured
	case e.past, v.state == status.StateFailed:
		return countNothing
	case v.state == status.StateDrifted, e.drifted:
		return countDrifted
	case v.state == status.StateUnknown:
		return countCannotTell
	case captured == status.StateCaptured:
		return countCaptured
	case e.other:
		return countOther
	case e.checkPassed():
		return countCaptured
	case v.candidate:
		return countCannotTell
	}
	return countOutside
}
