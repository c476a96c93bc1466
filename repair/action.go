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

var actions = []Action{ActionNone, ActionLabel, ActionDelete, ActionRepair}

// ParseAction parses the name of an action; empty means [ActionNone].
func ParseAction(s string) (Action, error) {
	if s == "" {
		return ActionNone, nil
	}
	if a := Action(s); slices.Contains(actions, a) {
		return a, nil
	}
	return "", fmt.Errorf("repair action %q: not one of none, label, delete, repair", s)
}
