//go:build linux

// Command gateway-node is the node's agent, with the proxy in the same process.
package main

import (
	ownnodeproxy "github.com/meshcni/meshcni/examples/own-node-proxy"
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
)

func main() {
	ownnodeproxy.Agent(&ownnodeproxy.Gateway{Port: gateway.Port, Serve: ownnodeproxy.Hello}).Exec()
}
