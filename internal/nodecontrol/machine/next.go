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

// correct takes back what the annotation says too much.
func correct(w Wanted, a Actual) []Action {
	switch {
	case !w.Status || !a.Namespace || a.Annotation != SaysEnrolled && a.Annotation != SaysElse || a.inForce():
		return nil
	case a.ruled():
		return []Action{SetPending}
	}
	return []Action{ClearStatus}
}

func join(w Wanted, a Actual) (acts []Action) {
	if !a.Namespace {
		return nil
	}
	acts = correct(w, a)
	if !a.Listening || !a.Handed {
		if !a.Proxy {
			// Rules that lead to nobody are not written. Those that are there stay: no traffic passes the mesh.
			if w.Status && a.ruled() && a.Rules != RulesUnread && a.Annotation == SaysNothing {
				acts = append(acts, SetPending)
			}
			return acts
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
	if w.Status && a.Annotation != SaysEnrolled || len(acts) > 0 && (acts[0] == SetPending || acts[0] == ClearStatus) {
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
