package facts_test

import (
	"fmt"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/mesh"
)

// A program with a mesh of its own beside one of this module.
func ExampleBeside() {
	for _, f := range facts.Beside(mesh.List{{Name: "acme", Title: "Acme"}}, []dialect.Dialect{istio.New()}) {
		fmt.Println(f.Title)
	}
	// Output:
	// Acme
	// Istio (sidecar)
}
