package linkerdfacts_test

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/facts/linkerdfacts"
)

// How Linkerd's injector is told of a plugin.
func ExampleNew() {
	fmt.Println(linkerdfacts.New().Injection.PluginMode)
	// Output: cniEnabled=true in the values of linkerd-control-plane's chart
}
