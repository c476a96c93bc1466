package machine

import (
	"cmp"

	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// Report describes a pod's state. Before: it was captured earlier.
func Report(w Wanted, a Actual, before bool) (status.State, status.Code) {
	short := func(reason status.Code) (status.State, status.Code) {
		if before {
			return status.StateDrifted, reason
		}
		return status.StateWaiting, reason
	}
	switch w.Choice {
	case Gone:
		return status.StateOutside, cmp.Or(w.Why, statuscode.Released)
	case Out:
		if a.Ours && (!a.Namespace || a.ruled() && a.Rules != RulesDraining) || a.Held && !a.heldBack() {
			return status.StateDrifted, statuscode.NotReleased
		}
		return status.StateOutside, cmp.Or(w.Why, statuscode.Released)
	case Unsure:
		switch w.Why {
		case status.CodePodRefused:
			return status.StateFailed, w.Why
		case statuscode.NoAddress:
			return status.StateWaiting, w.Why
		}
		return status.StateUnknown, cmp.Or(w.Why, statuscode.SelectionUnknown)
	case In:
	}
	switch {
	case a.Captured():
		return status.StateCaptured, statuscode.Captured
	case !a.Namespace:
		return short(statuscode.NoNetNS)
	case !a.Proxy && !(a.Listening && a.Handed):
		if a.Rules == RulesSame || a.Rules == RulesDiffer {
			before = true // its connections are refused: that is more than waiting
		}
		return short(statuscode.NodeProxyGone)
	case !a.Listening:
		return short(statuscode.NoListeners)
	case !a.Handed:
		return short(statuscode.NotHandedOver)
	case a.Rules == RulesDiffer:
		return short(statuscode.RulesDiffer)
	}
	return short(statuscode.RulesMissing)
}

// Drift lists what is not as it was in a pod that was captured: codes as those of [Report].
func Drift(w Wanted, a Actual) (kinds []status.Code) {
	if w.Choice != In || !a.Namespace {
		return nil
	}
	for _, k := range []struct {
		is   bool
		kind status.Code
	}{
		{a.Rules == RulesNone, statuscode.RulesMissing},
		{a.Rules == RulesDiffer, statuscode.RulesDiffer},
		{!a.Listening, statuscode.NoListeners},
		{w.Probes && !a.Exempt, statuscode.ProbesMissing},
		{w.Status && a.Annotation != SaysEnrolled, statuscode.StatusStale},
	} {
		if k.is {
			kinds = append(kinds, k.kind)
		}
	}
	return kinds
}

// DriftKinds lists all that Drift returns.
func DriftKinds() []status.Code {
	return []status.Code{statuscode.RulesMissing, statuscode.RulesDiffer, statuscode.NoListeners, statuscode.ProbesMissing, statuscode.StatusStale}
}
