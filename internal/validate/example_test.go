package validate_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// An init container that fails its pod, in a way that a repair controller
// knows, when the rules that it relies on are not there.
func Example() {
	report, err := validate.Run(context.Background(), validate.Options{Redirect: redirect.Default()})
	fmt.Print(report)
	var missing *validate.MissingError
	if errors.As(err, &missing) {
		os.Exit(126)
	}
}

// What a step reads like: what was sent, in whose name, what became of it and
// which rule should have taken it.
func ExampleStep() {
	fmt.Println(validate.Step{
		Family: ruleset.IPv4, Aspect: "outbound", Outcome: "missing",
		Proto: "tcp", Destination: netip.MustParseAddrPort("192.0.2.1:15002"), As: &validate.Identity{UID: 1000, GID: 1000},
		WantPort: 15001, Detail: "did not arrive at port 15001: no route to host", Rule: "nat/MESH_OUTPUT:9 -> nat/MESH_REDIRECT:1",
	})
	// Output:
	// missing  ipv4 outbound: tcp to 192.0.2.1:15002 as 1000/1000: did not arrive at port 15001: no route to host (wanted: nat/MESH_OUTPUT:9 -> nat/MESH_REDIRECT:1)
}
