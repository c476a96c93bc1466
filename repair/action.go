package repair

import (
	"fmt"
	"slices"
)

// Action is the treatment of broken pods. The zero value means [ActionNone].
type Action string

// The actions.
const (
	ActionNone   Action = "none"   // only report them
	ActionLabel  Action = "label"  // label them
	ActionDelete Action = "delete" // evict them
	ActionRepair Action = "repair" // write the rules into their running network namespaces
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
	OutcomeFound       Outcome = "found"       // reported only, since the action is none
	OutcomeLabelled    Outcome = "labelled"    // the pod has the label
	OutcomeUnlabelled  Outcome = "unlabelled"  // the label was removed, since the pod's check has succeeded
	OutcomeEvicted     Outcome = "evicted"     // the pod was evicted
	OutcomeDeleted     Outcome = "deleted"     // the pod was deleted, by Options.Force, since it could not be evicted
	OutcomeRepaired    Outcome = "repaired"    // the rules were written
	OutcomeIntact      Outcome = "intact"      // the rules were right; the pod's check has yet to run again
	OutcomeRecovered   Outcome = "recovered"   // the check of a repaired pod has succeeded
	OutcomeIneffective Outcome = "ineffective" // the check of a repaired pod has failed again
	OutcomeTooLate     Outcome = "too-late"    // the pod has failed for good, so rules cannot help it
	OutcomeGone        Outcome = "gone"        // the pod was gone, or being deleted, when it was read again
	OutcomeReplaced    Outcome = "replaced"    // another pod had the same name
	OutcomeMended      Outcome = "mended"      // the pod was no longer broken when it was read again
	OutcomeDeferred    Outcome = "deferred"    // the budget of the node or the cluster is used up for now
	OutcomeHeld        Outcome = "held"        // deletions are held back; the reason says why
	OutcomeBlocked     Outcome = "blocked"     // a disruption budget forbids eviction for now
	OutcomeSpared      Outcome = "spared"      // the pod has no owner that would replace it
	OutcomeConflict    Outcome = "conflict"    // the pod changed between the read and the action
	OutcomeNoProcess   Outcome = "no-process"  // no running process leads to the pod's network namespace
	OutcomeForbidden   Outcome = "forbidden"   // a permission is missing
	OutcomeUnverified  Outcome = "unverified"  // the action succeeded, but its effect does not show
	OutcomeFailed      Outcome = "failed"      // any other failure
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{
	OutcomeFound, OutcomeLabelled, OutcomeUnlabelled, OutcomeEvicted, OutcomeDeleted, OutcomeRepaired, OutcomeIntact,
	OutcomeRecovered, OutcomeIneffective, OutcomeTooLate, OutcomeGone, OutcomeReplaced, OutcomeMended, OutcomeDeferred,
	OutcomeHeld, OutcomeBlocked, OutcomeSpared, OutcomeConflict, OutcomeNoProcess, OutcomeForbidden, OutcomeUnverified,
	OutcomeFailed,
}
