package repair

import (
	"fmt"
	"slices"
)

// Action says what to do with broken pods. The zero value means [ActionNone].
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
	outcomeFound       Outcome = "found"       // reported only, since the action is none
	outcomeLabelled    Outcome = "labelled"    // the pod has the label
	outcomeUnlabelled  Outcome = "unlabelled"  // the label was removed, since the pod's check has succeeded
	outcomeEvicted     Outcome = "evicted"     // the pod was evicted
	outcomeDeleted     Outcome = "deleted"     // the pod was deleted, by Options.Force, since it could not be evicted
	outcomeRepaired    Outcome = "repaired"    // the rules were written
	outcomeIntact      Outcome = "intact"      // the rules were right; the pod's check has yet to run again
	outcomeRecovered   Outcome = "recovered"   // the check of a repaired pod has succeeded
	outcomeIneffective Outcome = "ineffective" // the check of a repaired pod has failed again
	outcomeTooLate     Outcome = "too-late"    // the pod has failed for good, so rules cannot help it
	outcomeGone        Outcome = "gone"        // the pod was gone, or being deleted, when it was read again
	outcomeReplaced    Outcome = "replaced"    // another pod had the same name
	outcomeMended      Outcome = "mended"      // the pod was no longer broken when it was read again
	outcomeDeferred    Outcome = "deferred"    // the budget of the node or the cluster is used up for now
	outcomeHeld        Outcome = "held"        // deletions are held back; the reason says why
	outcomeBlocked     Outcome = "blocked"     // a disruption budget forbids eviction for now
	outcomeSpared      Outcome = "spared"      // the pod has no owner that would replace it
	outcomeConflict    Outcome = "conflict"    // the pod changed between the read and the action
	outcomeNoProcess   Outcome = "no-process"  // no running process leads to the pod's network namespace
	outcomeForbidden   Outcome = "forbidden"   // a permission is missing
	outcomeUnverified  Outcome = "unverified"  // the action succeeded, but its effect does not show
	outcomeFailed      Outcome = "failed"      // any other failure
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{
	outcomeFound, outcomeLabelled, outcomeUnlabelled, outcomeEvicted, outcomeDeleted, outcomeRepaired, outcomeIntact,
	outcomeRecovered, outcomeIneffective, outcomeTooLate, outcomeGone, outcomeReplaced, outcomeMended, outcomeDeferred,
	outcomeHeld, outcomeBlocked, outcomeSpared, outcomeConflict, outcomeNoProcess, outcomeForbidden, outcomeUnverified,
	outcomeFailed,
}
