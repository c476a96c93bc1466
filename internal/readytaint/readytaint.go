package readytaint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// PutBack is the value of a taint that was put back. One with another value, or none, is from the node's registration. So the taint
// itself tells a controller that has just started what its predecessors did.
const PutBack = "put-back"

// The defaults of [Options]. Within the grace an agent is restarted, its image included that is on the node already. The share is
// what node pools are commonly allowed to lose in an upgrade.
const (
	DefaultGrace    = time.Minute
	DefaultMaxShare = 0.2
)

// Options say how patient and how bold to be.
type Options struct {
	// Grace bounds the time that a node's agent is gone, or not ready, before the taint is put back. A node counts as one on which no
	// agent can run only after that time, too, since labels of a new node may come late. It must be positive.
	Grace time.Duration
	// MaxShare is the share of all nodes that may have a taint that was put back, above 0 to 1. It is rounded down, to one node
	// at least.
	MaxShare float64
}

// Validate returns an error that names each value that cannot be.
func (o Options) Validate() error {
	var errs []error
	if o.Grace <= 0 {
		errs = append(errs, fmt.Errorf("grace %s: must be positive", o.Grace))
	}
	if !(o.MaxShare > 0 && o.MaxShare <= 1) { // NaN is neither
		errs = append(errs, fmt.Errorf("max-share %v: must be above 0, and 1 at most", o.MaxShare))
	}
	return errors.Join(errs...)
}

// Most bounds the nodes with a taint that was put back, given the number of all: none of no nodes.
func (o Options) Most(all int) int {
	// The smallest float above a share such as 0.29 of 100 nodes must not cost one of the 29.
	const almost = 1e-9
	return min(all, max(1, int(math.Floor(o.MaxShare*float64(all)+almost))))
}

// Place tells nodes that the agents' own manifest admits from others.
type Place int

// The places. The zero Place is one for agents.
const (
	// ForAgents: an agent belongs on the node.
	ForAgents Place = iota
	// NotForAgents: selectors of the manifest, or the node's operating system, leave it out.
	NotForAgents
	// KeptOff: another taint of the node keeps agents off. It may be there for good or until something is ready, which nothing
	// tells, so the node stays as it is.
	KeptOff
)

// Node is an observation of a node.
type Node struct {
	Name string
	// UID tells a node from another one that had its name before.
	UID string
	// Boot changes each time that the node boots. Empty: not known.
	Boot string
	// Tainted: the taint is there, with any value and effect. PutBack: it is one that was put back.
	Tainted, PutBack bool
	// Foreign: there is a taint of others that is to go with ours.
	Foreign bool
	Place   Place
	Agents  []Agent
}

// Agent is one of a node's agents: in an upgrade there are two.
type Agent struct {
	// Instance tells a run of the agent from the one before it.
	Instance string
	// Ready: the agent is ready, and not about to end.
	Ready bool
}

// State holds the nodes by name. Nil is nothing yet: each clock then begins with the first observation, so a
// controller that starts anew puts nothing back before Grace.
type State map[string]Known

// Known is the knowledge of one node.
type Known struct {
	uid, boot string
	instances []string  // those of the observation before
	stale     []string  // those from before the node's last boot, whose status may not have been corrected yet
	booted    time.Time // when that boot was seen; zero once an agent has been ready since
	gone      time.Time // since when there is no agent that is ready; zero while there is one
	excluded  time.Time // since when no agent can run there
}

// Change is an edit of a node's taints.
type Change string

// The changes.
const (
	// Remove takes away the taint, and those of others that are to go with it.
	Remove Change = "remove"
	// Add puts the taint back, with the value [PutBack].
	Add Change = "add"
)

// Why is the reason for a change.
type Why string

// The reasons.
const (
	AgentReady Why = "agent-ready" // Remove
	NoAgent    Why = "no-agent"    // Remove: none can run there
	AgentGone  Why = "agent-gone"  // Add
	NodeBooted Why = "node-booted" // Add: no agent has been ready since
)

// Action is a change of one node.
type Action struct {
	Node   string
	Change Change
	Why    Why
	// Since is the time at which the agent was first seen to be gone, or no agent to belong on the node. Zero for AgentReady.
	Since time.Time
}

// Standing is a node's standing.
type Standing string

// The standings.
const (
	Ready    Standing = "ready"    // its agent is
	Waiting  Standing = "waiting"  // it has the taint of its registration, and no agent that is ready
	Gone     Standing = "gone"     // its agent is gone, not for long enough yet
	Tainted  Standing = "tainted"  // its agent is gone, and the taint is put back
	Held     Standing = "held"     // its agent is gone, and the share is used up
	Outside  Standing = "outside"  // no agent can run there
	Unwanted Standing = "kept-off" // another taint keeps agents off
)

// Standings are all of them.
var Standings = []Standing{Ready, Waiting, Gone, Tainted, Held, Outside, Unwanted}

// Plan is the consequence of an observation.
type Plan struct {
	// Actions are in the order in which to do them: removals first, and of the others first the node whose agent is gone longest.
	Actions []Action
	// Held are the nodes whose taint is not put back because the share is used up, in that order.
	Held []string
	// Nodes counts the nodes by how they stand once the actions are done.
	Nodes map[Standing]int
	// Next is the time until time alone may change something. Zero: it will not.
	Next time.Duration
}

// Next decides. The nodes must be all of the cluster's, each once; state is what the last call returned. It changes neither.
func (o Options) Next(state State, nodes []Node, now time.Time) (State, Plan) {
	next, plan := make(State, len(nodes)), Plan{Nodes: map[Standing]int{}}
	room := o.Most(len(nodes))
	var wanted []Action
	for _, n := range nodes {
		known, a, standing, wait := o.judge(state[n.Name], n, now)
		if len(known.stale) > 0 { // they count again then
			wait = cmp.Or(wait, known.booted.Add(o.Grace).Sub(now))
		}
		next[n.Name] = known
		if n.PutBack {
			room--
		}
		if wait > 0 && (plan.Next == 0 || wait < plan.Next) {
			plan.Next = wait
		}
		switch a.Change {
		case Remove:
			plan.Actions = append(plan.Actions, a)
		case Add:
			wanted = append(wanted, a)
			continue
		}
		plan.Nodes[standing]++
	}
	slices.SortFunc(plan.Actions, func(a, b Action) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(wanted, func(a, b Action) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node)) })
	// A removal makes room only once it is done: it may fail.
	add := min(len(wanted), max(0, room))
	plan.Actions = append(plan.Actions, wanted[:add]...)
	for _, a := range wanted[add:] {
		plan.Held = append(plan.Held, a.Node)
	}
	plan.Nodes[Tainted] += add
	plan.Nodes[Held] += len(plan.Held)
	maps.DeleteFunc(plan.Nodes, func(_ Standing, n int) bool { return n == 0 })
	return next, plan
}

// StillDue reports whether the taint of one node, looked at again just before it is put back, is still to be. state is what Next
// returned with the plan.
func (o Options) StillDue(state State, n Node, now time.Time) bool {
	_, a, _, _ := o.judge(state[n.Name], n, now)
	return a.Change == Add
}

// judge decides about one node, whatever the others. wait is how long until time alone changes the answer.
func (o Options) judge(was Known, n Node, now time.Time) (is Known, a Action, s Standing, wait time.Duration) {
	is = was.observe(n, now, o.Grace)
	a.Node = n.Name
	due := func(since time.Time) bool {
		wait = o.Grace - now.Sub(since)
		return wait <= 0
	}
	remove := func(why Why, since time.Time) {
		if n.Tainted || n.Foreign {
			a.Change, a.Why, a.Since = Remove, why, since
		}
	}
	switch {
	case is.gone.IsZero():
		remove(AgentReady, time.Time{})
		return is, a, Ready, 0
	case n.Place == NotForAgents:
		if due(is.excluded) {
			remove(NoAgent, is.excluded)
			return is, a, Outside, 0
		}
		return is, a, Outside, wait
	case n.Tainted:
		s = Waiting
		if n.PutBack {
			s = Tainted
		}
		return is, a, s, 0
	case n.Place == KeptOff:
		return is, a, Unwanted, 0
	case !is.booted.IsZero():
		a.Change, a.Why, a.Since = Add, NodeBooted, is.gone
		return is, a, Held, 0
	case due(is.gone):
		a.Change, a.Why, a.Since = Add, AgentGone, is.gone
		return is, a, Held, 0
	}
	return is, a, Gone, wait
}

// observe brings what is known of a node up to date.
func (k Known) observe(n Node, now time.Time, grace time.Duration) Known {
	if k.uid != n.UID {
		k = Known{} // another node of that name
	}
	is := Known{uid: n.UID, boot: cmp.Or(n.Boot, k.boot), stale: k.stale, booted: k.booted, gone: k.gone, excluded: k.excluded}
	if k.boot != "" && n.Boot != "" && k.boot != n.Boot {
		// What ran before does not run any more, whatever its status says: nobody was there to correct it.
		is.stale, is.booted, is.gone = k.instances, now, time.Time{}
	}
	if !is.booted.IsZero() && now.Sub(is.booted) >= grace {
		// By now the node has said what runs on it. An instance that was seen before the boot was must not be ignored for ever.
		is.stale = nil
	}
	ready := false
	for _, a := range n.Agents {
		is.instances = append(is.instances, a.Instance)
		ready = ready || a.Ready && !slices.Contains(is.stale, a.Instance)
	}
	switch {
	case ready:
		is.gone, is.booted, is.stale = time.Time{}, time.Time{}, nil
	case is.gone.IsZero():
		is.gone = now
	}
	switch {
	case n.Place != NotForAgents:
		is.excluded = time.Time{}
	case is.excluded.IsZero():
		is.excluded = now
	}
	return is
}
