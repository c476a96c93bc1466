package machine_test

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
)

// A running pod joins, and leaves.
func ExampleNext() {
	in := machine.Wanted{Choice: machine.In, Status: true, Probes: true}
	fmt.Println(machine.Next(in, machine.Actual{Namespace: true, Proxy: true, Rules: machine.RulesNone}))

	out := machine.Wanted{Choice: machine.Out, Status: true, Probes: true}
	fmt.Println(machine.Next(out, machine.Actual{
		Namespace: true, Noted: true, Ours: true, Rules: machine.RulesSame, Listening: true, Handed: true, Held: true, Proxy: true,
		Exempt: true, AnyExempt: true, Annotation: machine.SaysEnrolled,
	}))
	// Output:
	// [hand-over listeners sysctl probes rules status]
	// [status drain]
}
