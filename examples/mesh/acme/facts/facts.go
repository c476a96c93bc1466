// Package facts has what the commands for people know of the mesh beside its dialect: how pods get into it, and what its init container
// writes. The plugin links none of it.
package facts

import (
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// List returns the facts.
func List() mesh.List {
	return mesh.List{{
		Name: "acme", Title: "Acme's mesh",
		Injection: mesh.Injection{
			Namespace:  []mesh.Wish{mesh.Label("acme.io/mesh", []string{"on"}, []string{"off"})},
			Webhook:    "injector.acme.io",
			PluginMode: "cni: true in acme's configuration",
		},
		Init: &mesh.Init{
			Flags: []mesh.Flag{
				{Name: "skip-ports", List: true, Field: "outbound.excludePorts", Grammar: redirect.Grammar{Ranges: true}},
				{Name: "skip-clients", List: true, Field: "inbound.excludeSources"},
				{Name: "dry-run", Bool: true, Refused: "writes no rules"},
			},
			Redirect: func(c mesh.InitContainer) (redirect.Redirect, error) {
				r := acme.DefaultRedirect()
				return r, c.Apply(&r)
			},
		},
	}}
}
