package migration

import (
	"fmt"
	"slices"
	"strings"
)

// NodeState is a node's progress.
type NodeState string

// The states.
const (
	// WithoutOurs: no agent of ours is there, so whatever plugin the node has captures the pods.
	WithoutOurs NodeState = "without-ours"
	// Both plugins' entries are in the network configuration.
	Both NodeState = "both"
	// Switched: the operator has given the word, and only our entry is there.
	Switched NodeState = "switched"
	// Ours: only our entry is there, and switch was not used.
	Ours NodeState = "ours"
	// NotKnown: the agent does not tell.
	NotKnown NodeState = "unknown"
)

// nodeStates are in the order of the way.
var nodeStates = []NodeState{WithoutOurs, Both, Switched, Ours, NotKnown}

// Words is the state for people.
func (s NodeState) Words() string {
	switch s {
	case WithoutOurs:
		return "without an agent of ours"
	case Both:
		return "with both plugins"
	case Switched:
		return "switched to ours"
	case Ours:
		return "with ours alone"
	}
	return "whose agent does not tell"
}

// Set notes the state of a node.
func (n *Nodes) Set(node string, s NodeState) {
	if n.States == nil {
		n.States = map[string]NodeState{}
	}
	n.States[node] = s
}

// Lines names the nodes in each state, maxNamed of them at most.
func (n Nodes) Lines() (lines []string) {
	for _, s := range nodeStates {
		var names []string
		for name, state := range n.States {
			if state == s {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		more := ""
		if left := len(names) - maxNamed; left > 0 {
			more = fmt.Sprintf(" and %d more", left)
		}
		lines = append(lines, fmt.Sprintf("%d nodes %s: %s%s", len(names), s.Words(), strings.Join(names[:min(len(names), maxNamed)], ", "), more))
	}
	return lines
}
