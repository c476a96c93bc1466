package netconf_test

import (
	"fmt"

	"github.com/meshcni/meshcni/plugin/netconf"
)

func ExampleParse() {
	config, unknown, err := netconf.Parse([]byte(`{"cniVersion": "1.0.0", "name": "pods", "type": "meshcni", "dialect": "linkerd", "blackend": "nftables"}`))
	if err != nil {
		fmt.Println(err) // every key that is wrong
		return
	}
	fmt.Println(config.Dialect, config.Backend, config.AddDeadline)
	fmt.Println("ignored:", unknown)
	// Output:
	// linkerd auto 30s
	// ignored: [blackend]
}
