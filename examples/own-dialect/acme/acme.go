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
	CaptureDNS  = "acme.example/capture-dns"
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
		{Field: "outbound.excludePorts", Keys: []string{SkipPorts}, Grammar: redirect.AllowRanges, Allowed: "ports and ranges", Inherited: true},
		{Field: "inbound.excludeSources", Keys: []string{SkipClients}, Allowed: "CIDR prefixes", Inherited: true},
		{Field: "dns.servers", Keys: []string{CaptureDNS}, Allowed: "true or false", Inherited: true, Set: redirect.Bool(func(r *redirect.Redirect, on bool) {
			if on {
				r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 7053}
			}
		})},
	}}
	return dialect.Dialect{
		Name:           "acme",
		Policy:         selection.Policy{ExcludedNamespaces: excludedNamespaces, ProxyContainers: []string{"acme-proxy"}, InjectKey: "acme.example/inject"},
		Names:          Defaults().Names,
		NeedsNamespace: true,
		Build:          dialect.FromSchema(schema),
	}
}
