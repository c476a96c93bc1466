package api_test

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/node/api"
)

// A right is said as kubectl auth can-i takes it.
func ExampleText() {
	fmt.Println(api.Text(api.MayPatchStatus))
	fmt.Println(api.Text(api.MayGet(api.DaemonSets)))
	// Output:
	// patch pods/status
	// get daemonsets.apps
}
