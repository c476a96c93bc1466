// Package acme is the dialect of a made-up mesh, as it would be in that mesh's
// own repository. It is data, and there is nothing to register.
package acme

import (
	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// The annotations that users set on a pod or on its namespace.
const (
	SkipPorts   = "acme.example/skip-ports"
	SkipClients = "acme.example/skip-clients"
	CaptureDNS  = "acme.example/capture-dns"
)

// Identity names everything of the product that the programs make or look for. Each of them takes it from here.
var Identity = meshcni.Identity{Name: "acme", Version: "v1.0.0", LabelPrefix: "acme.example/"}

// Defaults is the redirection of a pod without settings.
func Defaults() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{UIDs: []uint32{7001}, OutboundPort: 7001, InboundPort: 7002}
	r.Inbound.ExcludePorts = redirect.Ports(7003) // the proxy's health check
	r.Loopback = redirect.LoopbackPass            // a pod's calls to itself pass
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
		Name:   "acme",
		Policy: selection.Policy{ExcludedNamespaces: excludedNamespaces, ProxyContainers: []string{"acme-proxy"}, InitContainers: []string{"acme-init"}, InjectKey: "acme.example/inject"},
		Names:  Defaults().Names,
		Build:  dialect.FromSchema(schema),
		// Acme's pods have an init container that runs acme-redirect validate (see own-redirect).
		Validation: dialect.Validation{Container: "acme-validation", ExitCode: 126, ProbePort: 7004, Outbound: 7001, Inbound: 7002},
	}
}
