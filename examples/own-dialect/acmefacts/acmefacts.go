// Package acmefacts has what commands know of Acme's mesh beside its dialect: how pods get into it, what its init container writes, and how a
// pod looks that tries its rules.
package acmefacts

import (
	"github.com/meshcni/meshcni/examples/own-dialect/acme"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// New returns the facts.
func New() mesh.Facts {
	return mesh.Facts{
		Name: "acme", Title: "Acme's mesh",
		Injection: mesh.Injection{
			Namespace:  []mesh.Wish{mesh.Label("acme.example/mesh", []string{"on"}, []string{"off"})},
			Webhook:    "injector.acme.example",
			PluginMode: "cni: true in acme's configuration",
		},
		TestPod: mesh.TestPod{Annotations: map[string]string{acme.SkipPorts: "28001"}}, // mesh.ExcludedPort
		Init: &mesh.Init{
			Flags: []mesh.Flag{
				{Name: "skip-ports", List: true, Field: "outbound.excludePorts", Grammar: redirect.AllowRanges},
				{Name: "skip-clients", List: true, Field: "inbound.excludeSources"},
				{Name: "dry-run", Bool: true, Refused: "writes no rules"},
			},
			Redirect: func(c mesh.InitContainer) (redirect.Redirect, error) {
				r := acme.Defaults()
				return r, c.Apply(&r)
			},
		},
	}
}
