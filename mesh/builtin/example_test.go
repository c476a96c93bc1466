package builtin_test

import (
	"fmt"

	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/mesh/builtin"
)

// A program with a mesh of its own beside those of this module.
func ExampleFacts() {
	for _, f := range append(builtin.Facts(), mesh.Facts{Name: "acme", Title: "Acme"}) {
		fmt.Println(f.Title)
	}
	// Output:
	// Istio (sidecar)
	// Istio (ambient)
	// Linkerd
	// Kuma
	// Consul
	// Acme
}
