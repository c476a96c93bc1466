package machine

// State is the state of a pod's redirection, by the values of package agentsock.
type State string

// The states.
const (
	Captured State = "captured"
	Waiting  State = "waiting"
	Outside  State = "outside"
	Drifted  State = "drifted"
	Failed   State = "failed"
)

// The reasons that the state of things gives. Others come from what failed.
const (
	ReasonCaptured      = "captured"
	ReasonNoNamespace   = "no-namespace"
	ReasonNoProxy       = "no-proxy"
	ReasonNotHanded     = "not-handed-over"
	ReasonNoListeners   = "no-listeners"
	ReasonRulesMissing  = "rules-missing"
	ReasonRulesDiffer   = "rules-differ"
	ReasonProbesMissing = "probes-missing"
	ReasonStatusStale   = "status-stale"
	ReasonNotReleased   = "not-released"
	ReasonReleased      = "released"
	ReasonRefused       = "pod-refused"
	ReasonUnsure        = "selection-unknown"
)

// Report describes a pod's state. Before: it was captured earlier.
func Report(w Wanted, a Actual, before bool) (State, string) {
	short := func(reason string) (State, string) {
		if before {
			return Drifted, reason
		}
		return Waiting, reason
	}
	switch w.Choice {
	case Gone:
		return Outside, ReasonReleased
	case Out:
		if a.Ours && (!a.Namespace || a.ruled() && a.Rules != RulesDraining) || a.Held && !a.heldBack() {
			return Drifted, ReasonNotReleased
		}
		return Outside, ReasonReleased
	case Unsure:
		if w.Refused {
			return Failed, ReasonRefused
		}
		return Waiting, ReasonUnsure
	case In:
	}
	switch {
	case a.Captured():
		return Captured, ReasonCaptured
	case !a.Namespace:
		return short(ReasonNoNamespace)
	case !a.Proxy && !(a.Listening && a.Handed):
		if a.Rules == RulesSame || a.Rules == RulesDiffer {
			before = true // its connections are refused: that is more than waiting
		}
		return short(ReasonNoProxy)
	case !a.Listening:
		return short(ReasonNoListeners)
	case !a.Handed:
		return short(ReasonNotHanded)
	case a.Rules == RulesDiffer:
		return short(ReasonRulesDiffer)
	}
	return short(ReasonRulesMissing)
}

// Drift lists what is not as it was in a pod that was captured: reasons as those of [Report].
func Drift(w Wanted, a Actual) (kinds []string) {
	if w.Choice != In || !a.Namespace {
		return nil
	}
	for _, k := range []struct {
		is   bool
		kind string
	}{
		{a.Rules == RulesNone, ReasonRulesMissing},
		{a.Rules == RulesDiffer, ReasonRulesDiffer},
		{!a.Listening, ReasonNoListeners},
		{w.Probes && !a.Exempt, ReasonProbesMissing},
		{w.Status && a.Annotation != SaysEnrolled, ReasonStatusStale},
	} {
		if k.is {
			kinds = append(kinds, k.kind)
		}
	}
	return kinds
}

// DriftKinds lists all that Drift returns.
func DriftKinds() []string {
	return []string{ReasonRulesMissing, ReasonRulesDiffer, ReasonNoListeners, ReasonProbesMissing, ReasonStatusStale}
}
