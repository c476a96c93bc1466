package machine

// Next returns what is to be done, in order; nothing if all is as wanted, or if nothing can be done now.
func Next(w Wanted, a Actual) []Action {
	switch w.Choice {
	case In:
		return join(w, a)
	case Out:
		return leave(w, a)
	case Gone:
		return gone(w, a)
	case Unsure:
	}
	return nil
}

// enroll lists what is to be done about the annotation of a pod that is to be in, whatever else is; and what it says then.
func enroll(w Wanted, a Actual) (acts []Action, says Annotation) {
	closed := a.Rules == RulesSame && a.Inbound
	switch {
	case !w.Status:
	case closed && a.Annotation != SaysEnrolled:
		return []Action{SetEnrolled}, SaysEnrolled
	case closed || !a.Deaf || a.Annotation != SaysEnrolled:
	case a.ruled():
		return []Action{SetPending}, SaysPending
	default:
		return []Action{ClearStatus}, SaysNothing
	}
	return nil, a.Annotation
}

func join(w Wanted, a Actual) (acts []Action) {
	if !a.Namespace {
		return nil
	}
	acts, says := enroll(w, a)
	if !a.Listening || !a.Handed {
		if !a.Proxy {
			return acts // rules that lead to nobody are not written. Those that are there stay: no traffic passes the mesh
		}
		acts = append(acts, HandOver, AwaitListeners)
	}
	if !a.Moves {
		acts = append(acts, SetSysctl)
	}
	if w.Probes && !a.Exempt {
		acts = append(acts, PutProbes)
	}
	if a.Rules != RulesSame {
		acts = append(acts, WriteRules)
	}
	if w.Status && says != SaysEnrolled {
		acts = append(acts, SetEnrolled)
	}
	return acts
}

func leave(w Wanted, a Actual) (acts []Action) {
	if w.Status && a.Annotation != SaysNothing {
		acts = append(acts, ClearStatus)
	}
	switch {
	case !a.Ours:
		return append(append(acts, letGo(a)...), forget(a)...)
	case !a.Namespace, a.heldBack():
		return acts // there may be rules: the proxy keeps the pod until they can be removed
	case a.Rules == RulesNone:
		return append(append(acts, letGo(a)...), forget(a)...)
	case a.Rules != RulesDraining && !a.Due:
		return append(acts, DrainRules)
	case a.Rules != RulesDraining:
		return append(append(acts, DrainRules), letGo(a)...)
	case a.Held || a.Carries:
		return append(acts, letGo(a)...)
	}
	return append(append(append(acts, RemoveRules), letGo(a)...), forget(a)...)
}

func gone(w Wanted, a Actual) (acts []Action) {
	if w.Status && a.Annotation != SaysNothing {
		acts = append(acts, ClearStatus)
	}
	return append(append(acts, letGo(a)...), forget(a)...)
}

// letGo lists the actions that are left once no rule redirects.
func letGo(a Actual) (acts []Action) {
	if a.Held {
		acts = append(acts, TakeBack)
	}
	if a.AnyExempt {
		acts = append(acts, DeleteProbes)
	}
	return acts
}

// forget lists the actions that are left once there are no rules.
func forget(a Actual) (acts []Action) {
	if a.Noted {
		acts = append(acts, Forget)
	}
	return acts
}
