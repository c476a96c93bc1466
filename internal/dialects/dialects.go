// Package dialects finds a dialect of this module by the name that
// configuration calls it. Only programs need it: a library user holds the
// [dialect.Dialect] that he wants.
package dialects

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
)

// Default is the dialect of an empty name.
const Default = "istio"

// Names are all that ByName knows, in the order in which people read them.
func Names() []string { return []string{"istio", "ambient", "linkerd", "kuma", "consul"} }

// SandboxKeys are the keys of CNI_ARGS by which runtimes ask for one of these
// meshes, see [dialect.Sandboxes]. Whoever does not read the one that is there
// must not let the sandbox pass: it would start outside its mesh.
func SandboxKeys() []string { return []string{consul.IptablesConfig} }

// ByName returns the dialect; an empty name is [Default]. The excluded
// namespaces are left alone altogether. The error lists the known names.
func ByName(name string, excludedNamespaces []string) (dialect.Dialect, error) {
	switch name {
	case "", "istio":
		return istio.New(excludedNamespaces...), nil
	case "ambient":
		return ambient.New(excludedNamespaces...), nil
	case "linkerd":
		return linkerd.New(excludedNamespaces...), nil
	case "kuma":
		return kuma.New(excludedNamespaces...), nil
	case "consul":
		return consul.New(excludedNamespaces...), nil
	}
	return dialect.Dialect{}, fmt.Errorf("unknown dialect %q: known is %s", name, strings.Join(Names(), ", "))
}

// All returns the dialects of [Names], without excluded namespaces.
func All() []dialect.Dialect {
	var all []dialect.Dialect
	for _, name := range Names() {
		d, _ := ByName(name, nil)
		all = append(all, d)
	}
	return all
}

// Choose finds a dialect of one's own list by its name; an empty name is the
// first's. The excluded namespaces are left alone besides those that it
// excludes itself. The error lists the known names.
func Choose(known []dialect.Dialect, name string, excludedNamespaces []string) (dialect.Dialect, error) {
	for _, d := range known {
		if name == d.Name || name == "" {
			d.Policy.ExcludedNamespaces = slices.Concat(d.Policy.ExcludedNamespaces, excludedNamespaces)
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

// ForAgent returns the dialects that this module's node agent can run, and why
// it cannot run the others, by name. The plugin takes all of [Names]: agents of
// one's own may do what ours does not.
func ForAgent() (known []dialect.Dialect, unfit map[string]string) {
	unfit = map[string]string{
		"ambient": "its pods need an agent that hands their network namespaces to the node's proxy, which this one does not",
	}
	return slices.DeleteFunc(All(), func(d dialect.Dialect) bool { return unfit[d.Name] != "" }), unfit
}
