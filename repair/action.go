package repair

import (
	"fmt"
	"strings"
)

// Action is what is done to broken pods. The zero value is [ActionNone].
type Action string

// The actions.
const (
	// ActionNone only reports.
	ActionNone Action = "none"
	// ActionLabel labels the pod.
	ActionLabel Action = "label"
	// ActionDelete evicts the pod and, if asked, deletes what may not be evicted.
	ActionDelete Action = "delete"
	// ActionRepair puts the rules into the running pod.
	ActionRepair Action = "repair"
)

// Actions are all of them.
var Actions = []Action{ActionNone, ActionLabel, ActionDelete, ActionRepair}

// ParseAction reads an action's name; empty is [ActionNone].
func ParseAction(s string) (Action, error) {
	if s == "" {
		return ActionNone, nil
	}
	names := make([]string, len(Actions))
	for i, a := range Actions {
		if string(a) == s {
			return a, nil
		}
		names[i] = string(a)
	}
	return "", fmt.Errorf("repair action %q: not one of %s", s, strings.Join(names, ", "))
}

// Outcome is what came of a broken pod in one attempt, as a stable code.
type Outcome string

// The outcomes.
const (
	// OutcomeFound: the action is none, so the pod is only reported.
	OutcomeFound Outcome = "found"
	// OutcomeLabelled, OutcomeUnlabelled, OutcomeEvicted, OutcomeDeleted and
	// OutcomeRepaired: done, and seen to be done. A pod is unlabelled when its check
	// has succeeded since.
	OutcomeLabelled   Outcome = "labelled"
	OutcomeUnlabelled Outcome = "unlabelled"
	OutcomeEvicted    Outcome = "evicted"
	OutcomeDeleted    Outcome = "deleted"
	OutcomeRepaired   Outcome = "repaired"
	// OutcomeIntact: the rules were as they should be already; the pod's check has
	// yet to run again.
	OutcomeIntact Outcome = "intact"
	// OutcomeRecovered: the check of a repaired pod has succeeded.
	OutcomeRecovered Outcome = "recovered"
	// OutcomeIneffective: the check of a repaired pod has failed again.
	OutcomeIneffective Outcome = "ineffective"
	// OutcomeTooLate: the pod has failed for good; rules cannot help it.
	OutcomeTooLate Outcome = "too-late"
	// OutcomeGone: the pod was away, or deleting, when it was read again.
	OutcomeGone Outcome = "gone"
	// OutcomeReplaced: another pod of the same name was there.
	OutcomeReplaced Outcome = "replaced"
	// OutcomeMended: the pod was no longer broken when it was read again.
	OutcomeMended Outcome = "mended"
	// OutcomeDeferred: the budget of the node or of the cluster is used up for now.
	OutcomeDeferred Outcome = "deferred"
	// OutcomeHeld: the breaker is open, or the pod is one of a line of broken successors.
	OutcomeHeld Outcome = "held"
	// OutcomeBlocked: a disruption budget does not allow eviction now.
	OutcomeBlocked Outcome = "blocked"
	// OutcomeSpared: the pod has no owner that would make another one.
	OutcomeSpared Outcome = "spared"
	// OutcomeConflict: the pod changed between reading and acting.
	OutcomeConflict Outcome = "conflict"
	// OutcomeNoProcess: no process of the pod is there to find its namespace by.
	OutcomeNoProcess Outcome = "no-process"
	// OutcomeForbidden: a permission is missing.
	OutcomeForbidden Outcome = "forbidden"
	// OutcomeUnverified: the action succeeded, its effect was not seen.
	OutcomeUnverified Outcome = "unverified"
	// OutcomeFailed: anything else.
	OutcomeFailed Outcome = "failed"
)
