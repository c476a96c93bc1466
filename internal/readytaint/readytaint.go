// Package readytaint decides which nodes of a cluster carry a taint that keeps pods away from them until their agent is ready.
//
// A node registers with the taint, which whoever makes the node asks for. The taint goes when the node's agent is ready, and is put back
// when the agent has been gone for [Options.Grace], or the node has booted and its agent is not up yet. A node on which no agent can run
// keeps no taint and gets none. At most a share of the nodes has a taint that was put back: what takes the agents away from most of a
// cluster is no fault of the nodes, and a cluster that starts no pod at all is worse.
//
// The package does no I/O and has no clock: times that other machines wrote are not compared. The program meshcni-taint (cmd/taintcmd) is
// the controller around it.
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

// PutBack is the value of a taint that was put back; that of a node's registration has another, or none. So the taint itself tells a
// controller that has just started what its predecessors did.
const PutBack = "put-back"

// The defaults of [Options]. Within the grace an agent is restarted whose image is on the node. Node pools are commonly allowed to lose the
// share in an upgrade.
const (
	DefaultGrace    = time.Minute
	DefaultMaxShare = 0.2
)

// Options set the controller's patience and boldness.
type Options struct {
	// Grace bounds the time for which an agent is gone, or not ready, before the taint is put back, and for which a node, whose labels may
	// come late, admits no agent before its taint goes. It must be positive.
	Grace time.Duration
	// MaxShare is the share of all nodes, above 0 to 1, that may have a taint that was put back: rounded down, one node at least.
	MaxShare float64
}

// Validate returns an error that names each value that cannot be.
func (o Options) Validate() (err error) {
	if o.Grace <= 0 {
		err = fmt.Errorf("grace %s: must be positive", o.Grace)
	}
	if !(o.MaxShare > 0 && o.MaxShare <= 1) { // NaN is neither
		err = errors.Join(err, fmt.Errorf("max-share %v: must be above 0, and 1 at most", o.MaxShare))
	}
	return err
}

// Most bounds the nodes with a taint that was put back, given the number of all: none of no nodes.
func (o Options) Most(all int) int {
	const almost = 1e-9 // the float below a share such as 0.29 of 100 nodes must not cost one of the 29
	return min(all, max(1, int(math.Floor(o.MaxShare*float64(all)+almost))))
}

// Place tells nodes that the agents' own manifest admits from others. KeptOff: another taint of the node keeps agents off, for good or
// until something is ready, so the node stays as it is.
type Place int

// The places.
const (
	ForAgents    Place = iota // an agent belongs on the node
	NotForAgents              // selectors of the manifest, or the node's operating system, leave it out
	KeptOff
)

// Node is an observation of a node. The UID tells it from another that had its name before; Boot changes with each boot, and is empty if
// not known.
type Node struct {
	Name, UID, Boot  string
	Tainted, PutBack bool // the taint is there, with any value and effect; it was put back
	Foreign          bool // a taint of others is there that is to go with ours
	Place            Place
	Agents           []Agent // in an upgrade there are two
}

// Agent is one of a node's agents. Instance tells its run from the one before; Ready: it is, and is not about to end.
type Agent struct {
	Instance string
	Ready    bool
}

// State holds what is known of the nodes, by name. Nil is nothing yet: each clock then begins with the first observation, so a controller
// that starts anew puts nothing back before Grace.
type State map[string]Known

// Known is the knowledge of one node.
type Known struct {
	uid, boot        string
	instances, stale []string  // those of the observation before; those from before the last boot, whose status may not be corrected yet
	booted           time.Time // when that boot was seen; zero once an agent has been ready since
	gone, excluded   time.Time // since when there is no agent that is ready, and none can run there; zero: there is, it can
}

// Action is a change of one node. Since dates the agent's end, or the node's exclusion; zero for AgentReady.
type Action struct {
	Node   string
	Change Change
	Why    Why
	Since  time.Time
}

// Change of a node's taints, the reason Why for it, and the Standing of a node.
type (
	Change   string
	Why      string
	Standing string
)

// The changes, their reasons, and the standings. Remove takes others' taints that are to go with ours, too.
const (
	Remove, Add Change = "remove", "add"

	AgentReady, NoAgent   Why = "agent-ready", "no-agent"   // Remove
	AgentGone, NodeBooted Why = "agent-gone", "node-booted" // Add

	Ready    Standing = "ready"    // its agent is
	Waiting  Standing = "waiting"  // it has the taint of its registration, and no agent that is ready
	Gone     Standing = "gone"     // its agent is gone, not for long enough yet
	Tainted  Standing = "tainted"  // its agent is gone, and the taint is put back
	Held     Standing = "held"     // its agent is gone, and the share is used up
	Outside  Standing = "outside"  // no agent can run there
	Unwanted Standing = "kept-off" // another taint keeps agents off
)

// Standings lists all of them.
var Standings = []Standing{Ready, Waiting, Gone, Tainted, Held, Outside, Unwanted}

// Plan follows from an observation. Actions are in their order: removals first, then the nodes whose agents are gone longest. Held are the
// nodes whose taint is not put back because the share is used up. Nodes counts the nodes once the actions are done. After Next time alone
// may change something; zero: it will not.
type Plan struct {
	Actions []Action
	Held    []string
	Nodes   map[Standing]int
	Next    time.Duration
}

// Next decides. The nodes must be all of the cluster's, each once; state is what the last call returned. It changes neither.
func (o Options) Next(state State, nodes []Node, now time.Time) (State, Plan) {
	next, plan, room := make(State, len(nodes)), Plan{Nodes: map[Standing]int{}}, o.Most(len(nodes))
	var wanted []Action
	for _, n := range nodes {
		known, a, standing, wait := o.judge(state[n.Name], n, now)
		if next[n.Name] = known; n.PutBack {
			room-- // a removal makes room only once it is done: it may fail
		}
		if wait > 0 && (plan.Next == 0 || wait < plan.Next) {
			plan.Next = wait
		}
		if a.Change == Add {
			wanted = append(wanted, a)
			continue
		}
		if plan.Nodes[standing]++; a.Change == Remove {
			plan.Actions = append(plan.Actions, a)
		}
	}
	slices.SortFunc(plan.Actions, func(a, b Action) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(wanted, func(a, b Action) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node)) })
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

// judge decides about one node, whatever the others. After wait time alone changes the answer; zero: never.
func (o Options) judge(was Known, n Node, now time.Time) (is Known, a Action, s Standing, wait time.Duration) {
	is, a = was.observe(n, now, o.Grace), Action{Node: n.Name}
	left := func(since time.Time) time.Duration { return max(0, o.Grace-now.Sub(since)) }
	switch {
	case is.gone.IsZero():
		s, a.Change, a.Why = Ready, Remove, AgentReady
	case n.Place == NotForAgents:
		s, a.Why, a.Since, wait = Outside, NoAgent, is.excluded, left(is.excluded)
		if wait == 0 {
			a.Change = Remove
		}
	case n.PutBack:
		s = Tainted
	case n.Tainted:
		s = Waiting
	case n.Place == KeptOff:
		s = Unwanted
	case !is.booted.IsZero():
		s, a.Change, a.Why, a.Since = Held, Add, NodeBooted, is.gone
	default:
		s, a.Why, a.Since, wait = Gone, AgentGone, is.gone, left(is.gone)
		if wait == 0 {
			s, a.Change = Held, Add
		}
	}
	if a.Change == Remove && !n.Tainted && !n.Foreign {
		a.Change = ""
	}
	if len(is.stale) > 0 { // they count again then
		wait = cmp.Or(wait, is.booted.Add(o.Grace).Sub(now))
	}
	return is, a, s, wait
}

// observe brings what is known of a node up to date.
func (k Known) observe(n Node, now time.Time, grace time.Duration) Known {
	if k.uid != n.UID {
		k = Known{} // another node of that name
	}
	is := k
	is.uid, is.boot, is.instances = n.UID, cmp.Or(n.Boot, k.boot), nil
	if k.boot != "" && n.Boot != "" && k.boot != n.Boot {
		// What ran before does not run any more, whatever its status says: nobody was there to correct it.
		is.stale, is.booted, is.gone = k.instances, now, time.Time{}
	}
	if !is.booted.IsZero() && now.Sub(is.booted) >= grace {
		is.stale = nil // by now the node has said what runs on it: an instance that was seen before the boot was counts again
	}
	ready := false
	for _, a := range n.Agents {
		is.instances = append(is.instances, a.Instance)
		ready = ready || a.Ready && !slices.Contains(is.stale, a.Instance)
	}
	if ready {
		is.gone, is.booted, is.stale = time.Time{}, time.Time{}, nil
	} else if is.gone.IsZero() {
		is.gone = now
	}
	if n.Place != NotForAgents {
		is.excluded = time.Time{}
	} else if is.excluded.IsZero() {
		is.excluded = now
	}
	return is
}
