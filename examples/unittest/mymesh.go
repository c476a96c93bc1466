// Package mymesh is the dialect of a made-up mesh. Its test is the point of the
// example: it says where packets end up, without root, kernel or cluster.
package mymesh

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// SkipPorts is the annotation that keeps outbound ports out of the mesh.
const SkipPorts = "mymesh.example/skip-outbound-ports"

// New returns the dialect.
func New() dialect.Dialect {
	defaults := redirect.Default()
	defaults.Proxy = redirect.Proxy{UIDs: []uint32{4242}, OutboundPort: 4001, InboundPort: 4002}
	defaults.Inbound.ExcludePorts = redirect.Ports(4003) // the proxy's health check
	defaults.Names.ChainPrefix = "MYMESH_"
	schema := redirect.Schema{Defaults: defaults, Settings: []redirect.Setting{{
		Field:   "outbound.excludePorts",
		Keys:    []string{SkipPorts},
		Grammar: redirect.AllowRanges,
		Allowed: "ports and ranges separated by commas",
	}}}
	return dialect.Dialect{
		Name:   "mymesh",
		Policy: selection.Policy{ProxyContainers: []string{"mymesh-proxy"}, InjectKey: "mymesh.example/inject"},
		Names:  defaults.Names,
		Build:  dialect.FromSchema(schema),
	}
}
