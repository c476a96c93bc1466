package machine

import (
	"cmp"

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
		return status.StateOutside, cmp.Or(w.Why, status.CodeReleased)
	case Out:
		if a.Ours && (!a.Namespace || a.ruled() && a.Rules != RulesDraining) || a.Held && !a.heldBack() {
			return status.StateDrifted, status.CodeNotReleased
		}
		return status.StateOutside, cmp.Or(w.Why, status.CodeReleased)
	case Unsure:
		switch w.Why {
		case status.CodePodRefused:
			return status.StateFailed, w.Why
		case status.CodeNoAddress:
			return status.StateWaiting, w.Why
		}
		return status.StateUnknown, cmp.Or(w.Why, status.CodeSelectionUnknown)
	case In:
	}
	switch {
	case a.Captured():
		return status.StateCaptured, status.CodeCaptured
	case !a.Namespace:
		return short(status.CodeNoNetNS)
	case !a.Proxy && !(a.Listening && a.Handed):
		if a.Rules == RulesSame || a.Rules == RulesDiffer {
			before = true // its connections are refused: that is more than waiting
		}
		return short(status.CodeNodeProxyGone)
	case !a.Listening:
		return short(status.CodeNoListeners)
	case !a.Handed:
		return short(status.CodeNotHandedOver)
	case a.Rules == RulesDiffer:
		return short(status.CodeRulesDiffer)
	}
	return short(status.CodeRulesMissing)
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
		{a.Rules == RulesNone, status.CodeRulesMissing},
		{a.Rules == RulesDiffer, status.CodeRulesDiffer},
		{!a.Listening, status.CodeNoListeners},
		{w.Probes && !a.Exempt, status.CodeProbesMissing},
		{w.Status && a.Annotation != SaysEnrolled, status.CodeStatusStale},
	} {
		if k.is {
			kinds = append(kinds, k.kind)
		}
	}
	return kinds
}

// DriftKinds lists all that Drift returns.
func DriftKinds() []status.Code {
	return []status.Code{status.CodeRulesMissing, status.CodeRulesDiffer, status.CodeNoListeners, status.CodeProbesMissing, status.CodeStatusStale}
}
