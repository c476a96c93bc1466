// Package mymesh is a mesh that somebody might write: a dialect of its own,
// made from meshcni's parts, in its own repository. Its test, which needs no
// root, no kernel and no cluster, is the point of the example.
package mymesh

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// SkipPorts is the annotation with which a pod keeps outbound ports out of the mesh.
const SkipPorts = "mymesh.example/skip-outbound-ports"

// New returns the dialect.
func New() dialect.Dialect {
	defaults := redirect.Default()
	defaults.Proxy = redirect.Proxy{UIDs: []uint32{4242}, OutboundPort: 4001, InboundPort: 4002}
	defaults.Inbound.ExcludePorts = redirect.Ports(4003) // the proxy's health check
	defaults.Names.ChainPrefix = "MYMESH_"
	schema := redirect.Schema{Defaults: defaults, Settings: []redirect.Setting{{
		Field:   "outbound.excludePorts",
		Source:  redirect.FromAnnotation,
		Keys:    []string{SkipPorts},
		Set:     redirect.PortsInto(func(r *redirect.Redirect) *redirect.PortSet { return &r.Outbound.ExcludePorts }, redirect.AllowRanges),
		Allowed: "ports and ranges separated by commas",
	}}}
	return dialect.Dialect{
		Name:   "mymesh",
		Policy: selection.Policy{ProxyContainers: []string{"mymesh-proxy"}, InjectKey: "mymesh.example/inject"},
		Names:  defaults.Names,
		Build: func(in dialect.Input) (b dialect.Result, err error) {
			b.Redirect, b.Origins, b.Warnings, err = schema.Build(in.Values())
			return b, err
		},
	}
}
