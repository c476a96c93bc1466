// Package facts has the facts of the meshes whose dialects are in this module.
package facts

import (
	"slices"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/facts/ambientfacts"
	"github.com/meshcni/meshcni/internal/facts/consulfacts"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/internal/facts/kumafacts"
	"github.com/meshcni/meshcni/internal/facts/linkerdfacts"
	"github.com/meshcni/meshcni/mesh"
)

// Beside returns a program's own, with those of this module's meshes that it has dialects of; nil own: those of all.
func Beside(own mesh.List, dialects []dialect.Dialect) mesh.List {
	if own == nil {
		return All()
	}
	return append(slices.Clone(own), slices.DeleteFunc(All(), func(f mesh.Facts) bool {
		named := func(own mesh.Facts) bool { return own.Name == f.Name }
		return slices.ContainsFunc(own, named) || !slices.ContainsFunc(dialects, func(d dialect.Dialect) bool { return d.Name == f.Name })
	})...)
}

// All returns those of all, in the order of their dialects.
func All() mesh.List {
	return mesh.List{istiofacts.New(), ambientfacts.New(), linkerdfacts.New(), kumafacts.New(), consulfacts.New()}
}
