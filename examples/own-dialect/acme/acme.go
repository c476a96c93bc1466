// Package acme is a mesh's own dialect, as it would stand in the mesh's own
// repository: what it knows is data, and there is nothing to register.
package acme

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// What users may write on a pod, or on its namespace.
const (
	SkipPorts   = "acme.example/skip-ports"
	SkipClients = "acme.example/skip-clients"
	LookUps     = "acme.example/capture-look-ups"
)

// AgentPrefix begins the names of the pods of Acme's node agent. The plugin lets them through, and the agent knows its own
// by it; so both have it from here.
const AgentPrefix = "acme-node-"

// Defaults is the redirection of a pod that says nothing.
func Defaults() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{UIDs: []uint32{7001}, OutboundPort: 7001, InboundPort: 7002}
	r.Inbound.ExcludePorts = redirect.Ports(7003) // the proxy's health check
	r.Loopback = redirect.LoopbackPass            // nobody needs a mesh to call himself
	r.Names.ChainPrefix = "ACME_"
	return r
}

// New returns the dialect.
func New(excludedNamespaces ...string) dialect.Dialect {
	schema := redirect.Schema{Defaults: Defaults(), RunAsUser: true, Settings: []redirect.Setting{
		annotation("outbound.excludePorts", SkipPorts, "ports and ranges",
			redirect.PortsInto(func(r *redirect.Redirect) *redirect.PortSet { return &r.Outbound.ExcludePorts }, redirect.AllowRanges)),
		annotation("inbound.excludeSources", SkipClients, "CIDR prefixes",
			redirect.PrefixesInto(func(r *redirect.Redirect) *redirect.PrefixSet { return &r.Inbound.ExcludeSources }, 0)),
		annotation("dns.servers", LookUps, "true or false", redirect.Bool(func(r *redirect.Redirect, on bool) {
			if on {
				r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 7053}
			}
		})),
	}}
	return dialect.Dialect{
		Name:           "acme",
		Policy:         selection.Policy{ExcludedNamespaces: excludedNamespaces, ProxyContainers: []string{"acme-proxy"}, InjectKey: "acme.example/inject"},
		Names:          Defaults().Names,
		NeedsNamespace: true,
		// Pods check their redirection with meshcni-redirect validate, which exits with 126 when it is missing.
		Validation: dialect.Validation{Container: "acme-validation", ExitCode: 126},
		Build: func(in dialect.Input) (b dialect.Result, err error) {
			b.Redirect, b.Origins, b.Warnings, err = schema.Build(in.Values())
			return b, err
		},
	}
}

func annotation(field, key, allowed string, set func(*redirect.Redirect, string) error) redirect.Setting {
	return redirect.Setting{Field: field, Source: redirect.FromAnnotation, Keys: []string{key}, Set: set, Allowed: allowed, Inherited: true}
}
