package migration_test

import (
	"fmt"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/migrate/otherplugin"
)

func ExampleMake() {
	peer, _ := migration.Named(migration.Sources(facts.All(), otherplugin.Known()), "istio-cni")
	plan := migration.Make(meshcni.Identity{}, peer, []migration.Setting{
		{Key: "EXCLUDE_NAMESPACES", Value: "kube-system, batch", From: "ConfigMap istio-system/istio-cni-config"},
		{Key: "SHINY", Value: "yes", From: "ConfigMap istio-system/istio-cni-config"},
	})
	fmt.Print(plan.ValuesYAML())
	for _, s := range plan.Unknown {
		fmt.Println("not known:", s)
	}
	// Output:
	// # Values of the meshcni chart, from the settings of istio-cni.
	// dialect: istio
	// excludeNamespaces:
	// - kube-system
	// - batch
	// not known: SHINY="yes" (ConfigMap istio-system/istio-cni-config)
}
