// Package acme has what is this mesh's own: its names, and which pods' connections go through its proxy. It is data, and there is nothing to
// register. Change it, and the tests beside it say what that changes.
package acme

import (
	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// version is set by the Makefile.
var version = "v0.0.0-devel"

// Identity returns the names of the mesh's programs, objects, labels, metrics and variables: all follow from this one. The chart knows it as
// its value product.
func Identity() meshcni.Identity { return meshcni.Identity{Name: "acme", Version: version} }

// Proxy is the proxy's container.
const Proxy = "acme-proxy"

// The annotations that users set on their pods.
const (
	Inject      = "acme.io/inject"
	SkipPorts   = "acme.io/skip-ports"
	SkipClients = "acme.io/skip-clients"
	CaptureDNS  = "acme.io/capture-dns"
)

// DefaultRedirect is the redirection of a pod without annotations: all TCP of both families, but for what is said here.
func DefaultRedirect() redirect.Redirect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{UIDs: []uint32{7001}, OutboundPort: 7001, InboundPort: 7002}
	r.Inbound.ExcludePorts = redirect.Ports(7003) // the proxy's health check
	r.Loopback = redirect.LoopbackPass            // a pod's calls to itself do not go through its proxy
	r.Names.ChainPrefix = "ACME_"                 // tells these rules from everybody else's
	return r
}

// Settings are the annotations, each with the field of the Redirect that it sets. A value that is not allowed is an error that names both.
func Settings() []redirect.Setting {
	return []redirect.Setting{
		{Field: "outbound.excludePorts", Keys: []string{SkipPorts}, Grammar: redirect.Grammar{Ranges: true}, Allowed: "ports and ranges"},
		{Field: "inbound.excludeSources", Keys: []string{SkipClients}, Allowed: "CIDR prefixes"},
		{Field: "dns.servers", Keys: []string{CaptureDNS}, Allowed: "true or false", Set: redirect.Bool(func(r *redirect.Redirect, on bool) {
			if on {
				r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 7053}
			}
		})},
	}
}

// Dialects returns the meshes of the programs: this one.
func Dialects() []dialect.Dialect {
	return []dialect.Dialect{{
		Name: "acme",
		// A pod is in the mesh that has the proxy, unless it says acme.io/inject: "false", or still has the init container that wrote the
		// rules before there was a plugin.
		Policy: selection.Policy{ProxyContainers: []string{Proxy}, InitContainers: []string{"acme-init"}, InjectKey: Inject},
		Names:  DefaultRedirect().Names,
		Build:  dialect.FromSchema(redirect.Schema{Defaults: DefaultRedirect(), RunAsUser: true, Settings: Settings()}),
		// The injector gives each pod an init container that runs "acme-redirect validate". Where it ends with this code, the pod has no rules, and
		// the agent repairs it.
		Check: dialect.Check{Container: "acme-validation", ExitCode: 126, ProbePort: 7004, Outbound: 7001, Inbound: 7002},
	}}
}
