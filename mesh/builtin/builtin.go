// Package builtin has the facts of the meshes whose dialects are in this module.
package builtin

import (
	"github.com/meshcni/meshcni/dialect/ambient/ambientfacts"
	"github.com/meshcni/meshcni/dialect/consul/consulfacts"
	"github.com/meshcni/meshcni/dialect/istio/istiofacts"
	"github.com/meshcni/meshcni/dialect/kuma/kumafacts"
	"github.com/meshcni/meshcni/dialect/linkerd/linkerdfacts"
	"github.com/meshcni/meshcni/mesh"
)

// Facts returns those of all, in the order of their dialects.
func Facts() mesh.List {
	return mesh.List{istiofacts.New(), ambientfacts.New(), linkerdfacts.New(), kumafacts.New(), consulfacts.New()}
}
