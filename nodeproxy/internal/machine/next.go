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

func join(w Wanted, a Actual) (todo []Action) {
	if !a.Namespace {
		return nil
	}
	todo = correct(w, a)
	if !a.Listening || !a.Handed && a.Proxy {
		if !a.Proxy {
			// Rules that lead to nobody are not written. Those that are there stay: no traffic passes the mesh.
			if w.Status && a.ruled() && a.Rules != RulesUnread && a.Annotation == SaysNothing {
				todo = append(todo, SetPending)
			}
			return todo
		}
		todo = append(todo, HandOver, AwaitListeners)
	}
	if w.Probes && !a.Exempt {
		todo = append(todo, PutProbes)
	}
	if a.Rules != RulesSame {
		todo = append(todo, WriteRules)
	}
	if w.Status && a.Annotation != SaysEnrolled || len(todo) > 0 && (todo[0] == SetPending || todo[0] == ClearStatus) {
		todo = append(todo, SetEnrolled)
	}
	return todo
}

func leave(w Wanted, a Actual) (todo []Action) {
	if w.Status && a.Annotation != SaysNothing {
		todo = append(todo, ClearStatus)
	}
	if a.Ours {
		if !a.Namespace {
			return todo // there may be rules: the proxy keeps the pod until they can be removed
		}
		if a.ruled() {
			todo = append(todo, RemoveRules)
		}
	}
	return append(todo, letGo(a)...)
}

func gone(w Wanted, a Actual) (todo []Action) {
	if w.Status && a.Annotation != SaysNothing {
		todo = append(todo, ClearStatus)
	}
	return append(todo, letGo(a)...)
}

// letGo is what is left to do once there are no rules.
func letGo(a Actual) (todo []Action) {
	if a.Held {
		todo = append(todo, TakeBack)
	}
	if a.AnyExempt {
		todo = append(todo, DeleteProbes)
	}
	if a.Noted {
		todo = append(todo, Forget)
	}
	return todo
}
