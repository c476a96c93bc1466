// Package dialects finds a dialect by its name in a configuration. Only programs need it: a user of the library has the
// [dialect.Dialect] itself.
package dialects

import (
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
func All() dialect.List {
	return dialect.List{istio.New(), ambient.New(ambient.Options{}), linkerd.New(), kuma.New(), consul.New()}
}

// Names lists the names of [All].
func Names() []string { return All().Names() }

// Usage describes the flag --dialect of programs that know these dialects.
func Usage(known dialect.List) string {
	usage := "the mesh: " + strings.Join(known.Names(), ", ")
	if len(known) > 1 {
		usage += "; of several, separated by commas, the first that selects a pod has it"
	}
	return usage
}

// ByName is [Choose] of one from [All].
func ByName(name string, excludedNamespaces []string, excludedLabels labels.Selector) (dialect.Dialect, error) {
	var names []string
	if name != "" {
		names = []string{name}
	}
	l, err := Choose(All(), names, excludedNamespaces, excludedLabels)
	if err != nil {
		return dialect.Dialect{}, err
	}
	return l[0], nil
}

// SandboxKeys are the keys of CNI_ARGS by which runtimes ask for one of these meshes, see [dialect.Sandboxes]. A plugin that
// does not read a key that is set must refuse the sandbox, which would otherwise start outside its mesh.
func SandboxKeys() []string { return []string{consul.IptablesConfig} }

// Choose is [dialect.List.Find] in a list of known dialects. The excluded namespaces, by name and by their labels, are
// added to those that each dialect excludes itself; a nil selector excludes none.
func Choose(known dialect.List, names, excludedNamespaces []string, excludedLabels labels.Selector) (dialect.List, error) {
	found, err := known.Find(names...)
	if err != nil {
		return nil, err
	}
	found = slices.Clone(found)
	var excluded []string
	for _, name := range excludedNamespaces {
		if name = strings.TrimSpace(name); name != "" {
			excluded = append(excluded, name)
		}
	}
	for i := range found {
		p := &found[i].Policy
		p.ExcludedNamespaces = slices.Concat(p.ExcludedNamespaces, excluded)
		if excludedLabels != nil {
			p.ExcludedNamespaceLabels = append(slices.Clone(p.ExcludedNamespaceLabels), excludedLabels)
		}
	}
	return found, nil
}
