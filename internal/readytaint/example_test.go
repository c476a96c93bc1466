package readytaint_test

import (
	"fmt"
	"time"

	"github.com/meshcni/meshcni/internal/readytaint"
)

// A new node's taint goes once its agent is ready. When the agent has been gone for the grace, the taint is put back.
func ExampleOptions_Next() {
	options := readytaint.Options{Grace: readytaint.DefaultGrace, MaxShare: 0.2}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) // the caller's clock
	agent := []readytaint.Agent{{Instance: "a", Ready: true}}
	var state readytaint.State
	var plan readytaint.Plan
	for _, node := range []readytaint.Node{
		{Name: "node-1", UID: "1", Tainted: true},
		{Name: "node-1", UID: "1", Tainted: true, Agents: agent},
		{Name: "node-1", UID: "1"},
		{Name: "node-1", UID: "1"},
	} {
		state, plan = options.Next(state, []readytaint.Node{node}, now)
		fmt.Println(now.Format(time.TimeOnly), len(plan.Actions), "changes")
		for _, a := range plan.Actions {
			fmt.Println(" ", a.Node, a.Change, a.Why)
		}
		now = now.Add(time.Minute)
	}
	// Output:
	// 12:00:00 0 changes
	// 12:01:00 1 changes
	//   node-1 remove agent-ready
	// 12:02:00 0 changes
	// 12:03:00 1 changes
	//   node-1 add agent-gone
}
