package linkerdfacts_test

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/facts/linkerdfacts"
)

// A setting of Linkerd's plugin that the chart has not.
func ExampleNew() {
	o := linkerdfacts.New().Plugin.Settings["linkerd.outbound-ports-to-ignore"]("[4567]", nil)
	fmt.Println(o.Undone)
	// Output: set config.linkerd.io/skip-outbound-ports on the namespaces
}
