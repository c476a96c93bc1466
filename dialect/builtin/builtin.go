// Package builtin lists this module's dialects. A program that knows a mesh of its own too appends it:
//
//	known := append(builtin.All(), acme.New())
package builtin

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
)

// All returns the dialects in the order in which people read them, without excluded namespaces. They are valid: a program need not
// call [dialect.Validate] for them.
func All() []dialect.Dialect {
	return []dialect.Dialect{istio.New(), ambient.New(ambient.Options{}), linkerd.New(), kuma.New(), consul.New()}
}

// Names lists the names of [All].
func Names() []string { return dialect.SetOf(All()...).Names() }
