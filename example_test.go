package meshcni_test

import (
	"fmt"

	"github.com/meshcni/meshcni/redirect"
)

// Which connections of a pod go through its proxy is a value; so are the rules.
func Example() {
	r := redirect.Default() // all TCP, both families, proxy runs as user 1337
	r.Inbound.ExcludePorts = redirect.Ports(22)

	rules, err := r.Ruleset()
	if err != nil {
		fmt.Println(err) // every field that cannot be
		return
	}
	fmt.Print(rules.IPv4) // what iptables-restore --noflush takes
	// Output:
	// *nat
	// :MESH_PREROUTING - [0:0]
	// :MESH_OUTPUT - [0:0]
	// :MESH_INBOUND - [0:0]
	// :MESH_IN_REDIRECT - [0:0]
	// :MESH_REDIRECT - [0:0]
	// -A PREROUTING -j MESH_PREROUTING
	// -A OUTPUT -j MESH_OUTPUT
	// -A MESH_PREROUTING -p tcp -j MESH_INBOUND
	// -A MESH_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 1337 -j MESH_IN_REDIRECT
	// -A MESH_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
	// -A MESH_OUTPUT -m owner --uid-owner 1337 -j RETURN
	// -A MESH_OUTPUT -d 127.0.0.1/32 -j RETURN
	// -A MESH_OUTPUT -j MESH_REDIRECT
	// -A MESH_INBOUND -p tcp -m tcp --dport 22 -j RETURN
	// -A MESH_INBOUND -p tcp -j MESH_IN_REDIRECT
	// -A MESH_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
	// -A MESH_REDIRECT -p tcp -j REDIRECT --to-ports 15001
	// COMMIT
}
