package consulfacts_test

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/facts/consulfacts"
)

// How Consul's injector is told of a plugin.
func ExampleNew() {
	fmt.Println(consulfacts.New().Injection.PluginMode)
	// Output: -enable-cni=true among the arguments of Consul's injector, which its chart sets with connectInject.cni.enabled
}
