// Package dialects finds a dialect by its name in a configuration. Only programs need it: a user of the library has the
// [dialect.Dialect] itself.
package dialects

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
)

// All returns the dialects in the order in which people read them, without excluded namespaces.
func All() []dialect.Dialect {
	return []dialect.Dialect{istio.New(), ambient.New(ambient.Options{}), linkerd.New(), kuma.New(), consul.New()}
}

// Names lists the names of [All].
func Names() []string { return NamesOf(All()) }

// ByName is [Choose] from [All].
func ByName(name string, excludedNamespaces []string, excludedLabels labels.Selector) (dialect.Dialect, error) {
	return Choose(All(), name, excludedNamespaces, excludedLabels)
}

// SandboxKeys are the keys of CNI_ARGS by which runtimes ask for one of these meshes, see [dialect.Sandboxes]. A plugin that
// does not read a key that is set must refuse the sandbox, which would otherwise start outside its mesh.
func SandboxKeys() []string { return []string{consul.IptablesConfig} }

// Choose finds a dialect in a list by its name. An empty name is the first's. The excluded namespaces, by name and by
// their labels, are added to those that the dialect excludes itself; a nil selector excludes none. The error lists the known
// names.
func Choose(known []dialect.Dialect, name string, excludedNamespaces []string, excludedLabels labels.Selector) (dialect.Dialect, error) {
	for _, d := range known {
		if name == d.Name || name == "" {
			d.Policy.ExcludedNamespaces = slices.Concat(d.Policy.ExcludedNamespaces, excludedNamespaces)
			if excludedLabels != nil {
				d.Policy.ExcludedNamespaceLabels = append(slices.Clone(d.Policy.ExcludedNamespaceLabels), excludedLabels)
			}
			return d, nil
		}
	}
	return dialect.Dialect{}, fmt.Errorf("unknown dialect %q: known is %s", name, strings.Join(NamesOf(known), ", "))
}

// NamesOf lists the dialects' names, for help.
func NamesOf(known []dialect.Dialect) []string {
	var names []string
	for _, d := range known {
		names = append(names, d.Name)
	}
	return names
}

// ForAgent returns the dialects that this module's node agent can run, and why it cannot run the others, by name. The
// plugin takes all of [Names]: agents of one's own may do what ours does not.
func ForAgent() (known []dialect.Dialect, unfit map[string]string) {
	unfit = map[string]string{
		"ambient": "its pods need an agent that hands their network namespaces to the node's proxy, which this one does not",
	}
	return slices.DeleteFunc(All(), func(d dialect.Dialect) bool { return unfit[d.Name] != "" }), unfit
}
