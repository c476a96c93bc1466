package otherplugin_test

import (
	"fmt"

	"github.com/meshcni/meshcni/migrate/otherplugin"
)

// A setting of Linkerd's plugin that the chart has not.
func ExampleKnown() {
	for _, p := range otherplugin.Known() {
		if p.Type == "linkerd-cni" {
			fmt.Println(p.Settings["linkerd.outbound-ports-to-ignore"]("[4567]", nil).Undone)
		}
	}
	// Output: set config.linkerd.io/skip-outbound-ports on the namespaces
}
