package ambientfacts_test

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/facts/ambientfacts"
)

// A pod of the mesh is one by its label.
func ExampleNew() {
	fmt.Println(ambientfacts.New().TestPod.Labels)
	// Output: map[istio.io/dataplane-mode:ambient]
}
