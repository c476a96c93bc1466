// Package dialects finds a dialect of this module by the name that
// configuration calls it. Only programs need it: a library user holds the
// [dialect.Dialect] that he wants.
package dialects

import (
	"fmt"
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
