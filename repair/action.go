package repair

import (
	"fmt"
	"slices"
)

// Action says what to do with broken pods. The zero value means [ActionNone].
type Action string

// The actions.
const (
	// ActionNone only reports broken pods.
	ActionNone Action = "none"
	// ActionLabel labels them.
	ActionLabel Action = "label"
	// ActionDelete evicts them.
	ActionDelete Action = "delete"
	// ActionRepair writes the rules into the running pods.
	ActionRepair Action = "repair"
)

// Actions lists all actions.
var Actions = []Action{ActionNone, ActionLabel, ActionDelete, ActionRepair}

// ParseAction parses the name of an action; empty means [ActionNone].
func ParseAction(s string) (Action, error) {
	if s == "" {
		return ActionNone, nil
	}
	if a := Action(s); slices.Contains(Actions, a) {
		return a, nil
	}
	return "", fmt.Errorf("repair action %q: not one of none, label, delete, repair", s)
}

// Outcome is a stable code for what one attempt to deal with a broken pod came to. The log, the events and the metric
// meshcni_repair_outcomes_total use it.
type Outcome string

// The outcomes.
const (
	// OutcomeFound: the pod is only reported, since the action is none.
	OutcomeFound Outcome = "found"
	// OutcomeLabelled: the pod has the label.
	OutcomeLabelled Outcome = "labelled"
	// OutcomeUnlabelled: the label was removed, since the pod's check has succeeded.
	OutcomeUnlabelled Outcome = "unlabelled"
	// OutcomeEvicted: the pod was evicted.
	OutcomeEvicted Outcome = "evicted"
	// OutcomeDeleted: the pod was deleted, since a disruption budget forbade its eviction and Options.Force is set.
	OutcomeDeleted Outcome = "deleted"
	// OutcomeRepaired: the rules were written.
	OutcomeRepaired Outcome = "repaired"
	// OutcomeIntact: the rules were already right; the pod's check has yet to run again.
	OutcomeIntact Outcome = "intact"
	// OutcomeRecovered: the check of a repaired pod has succeeded.
	OutcomeRecovered Outcome = "recovered"
	// OutcomeIneffective: the check of a repaired pod has failed again.
	OutcomeIneffective Outcome = "ineffective"
	// OutcomeTooLate: the pod has failed for good; rules cannot help it.
	OutcomeTooLate Outcome = "too-late"
	// OutcomeGone: the pod was gone, or being deleted, when it was read again.
	OutcomeGone Outcome = "gone"
	// OutcomeReplaced: another pod had the same name.
	OutcomeReplaced Outcome = "replaced"
	// OutcomeMended: the pod was no longer broken when it was read again.
	OutcomeMended Outcome = "mended"
	// OutcomeDeferred: the budget of the node or the cluster is used up for now.
	OutcomeDeferred Outcome = "deferred"
	// OutcomeHeld: deletions are held back; the reason says why.
	OutcomeHeld Outcome = "held"
	// OutcomeBlocked: a disruption budget forbids eviction for now.
	OutcomeBlocked Outcome = "blocked"
	// OutcomeSpared: the pod has no owner that would replace it.
	OutcomeSpared Outcome = "spared"
	// OutcomeConflict: the pod changed between the read and the action.
	OutcomeConflict Outcome = "conflict"
	// OutcomeNoProcess: no running process leads to the pod's network namespace.
	OutcomeNoProcess Outcome = "no-process"
	// OutcomeForbidden: a permission is missing.
	OutcomeForbidden Outcome = "forbidden"
	// OutcomeUnverified: the action succeeded, but its effect does not show.
	OutcomeUnverified Outcome = "unverified"
	// OutcomeFailed: any other failure.
	OutcomeFailed Outcome = "failed"
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{
	OutcomeFound, OutcomeLabelled, OutcomeUnlabelled, OutcomeEvicted, OutcomeDeleted, OutcomeRepaired, OutcomeIntact,
	OutcomeRecovered, OutcomeIneffective, OutcomeTooLate, OutcomeGone, OutcomeReplaced, OutcomeMended, OutcomeDeferred,
	OutcomeHeld, OutcomeBlocked, OutcomeSpared, OutcomeConflict, OutcomeNoProcess, OutcomeForbidden, OutcomeUnverified,
	OutcomeFailed,
}
