// Package readytaint decides which nodes of a cluster carry a taint that keeps pods away from them until their agent is ready.
//
// A node registers with the taint, which whoever makes the node asks for. The taint goes when the node's agent is ready, and is
// put back when the agent has been gone for [Options.Grace], or the node has booted and its agent is not up yet. A node on which
// no agent can run keeps no taint and gets none. At most a share of the nodes has a taint that was put back: what takes the agents
// away from most of a cluster is no fault of the nodes, and a cluster that starts no pod at all is worse.
//
// The package does no I/O and has no clock. [Options.Next] takes what is observed of the nodes and of their agents, what was known
// before, and the time, which is the caller's own: times that other machines wrote are not compared with it. The program
// meshcni-taint (cmd/taintcmd) is the controller around it; one for another agent needs no more than its own observations:
//
//	state, plan = options.Next(state, nodes, time.Now())
//	for _, a := range plan.Actions { … }
package readytaint
