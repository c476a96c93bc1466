package dialects

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/selection"
)

// Configured holds the meshes of a plugin's configuration: what every program that decides about pods as the plugin does goes by.
type Configured struct {
	// Meshes are asked about a pod, in this order. They exclude the namespaces that the configuration excludes.
	Meshes dialect.List
	// Known has all meshes of the program, with the configuration's settings. They exclude no more namespaces than by themselves.
	Known dialect.List
	// Options are those of a pod's plan.
	Options dialect.Options
	// ExcludedLabels selects the excluded namespaces by their labels; nil: none.
	ExcludedLabels labels.Selector

	config netconf.Config
}

// KeyError holds the fault of one key of a configuration. Get it with errors.As(err, &keyError).
type KeyError struct {
	// Key is that of the plugin's entry, such as "kubernetes.exclude_namespace_selector", and Flag that of programs with flags.
	Key, Flag string
	Err       error
}

// Error returns "KEY: " and the fault.
func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap returns the fault.
func (e *KeyError) Unwrap() error { return e.Err }

// Of returns the meshes of a configuration among those that a program knows, in the order of [dialect.List.Find]. The error joins a
// [*KeyError] for each wrong key, and what is wrong with the known ones. What is right is returned with it. A nil List means [All],
// which need no validation: that would take a millisecond of each ADD.
func Of(known dialect.List, c netconf.Config) (Configured, error) {
	if known == nil {
		known = All()
	} else if err := known.Validate(); err != nil { // nothing can be asked of them
		return Configured{Known: known}, err
	}
	return OfValid(known, c)
}

// OfValid is [Of] for known meshes that have been validated, for programs that ask again and again.
func OfValid(known dialect.List, c netconf.Config) (Configured, error) {
	m := Configured{
		Known: known, config: c,
		Options: dialect.Options{UncapturedFamily: c.UncapturedFamily, RefuseProxyUID: c.RefuseProxyUID, RefuseNetRaw: c.RefuseNetRaw},
	}
	var errs []error
	wrong := func(key, flag string, err error) {
		if err != nil {
			errs = append(errs, &KeyError{key, flag, err})
		}
	}
	var err error
	m.Known, err = configure(known, c.Ambient)
	errs = append(errs, err)
	m.ExcludedLabels, err = selection.ParseLabels(c.Kubernetes.ExcludeNamespaceSelector)
	wrong("kubernetes.exclude_namespace_selector", "exclude-namespace-selector", err)
	m.Meshes, err = m.named(c.Dialects)
	wrong("dialect", "dialect", err)
	return m, errors.Join(errs...)
}

// named finds meshes and has them exclude the configuration's namespaces.
func (m Configured) named(names []string) (dialect.List, error) {
	return Choose(m.Known, names, m.config.Kubernetes.ExcludeNamespaces, m.ExcludedLabels)
}

// Others returns the known meshes that are not configured; they exclude the configuration's namespaces too.
func (m Configured) Others() dialect.List {
	var names []string
	for _, name := range m.Known.Names() {
		if m.Meshes.Named(name) == nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 { // which would mean the first
		return nil
	}
	others, _ := m.named(names) // they are known
	return others
}

// Everywhere returns the configured meshes, which exclude no more namespaces than by themselves.
func (m Configured) Everywhere() dialect.List {
	meshes, _ := Choose(m.Known, m.Meshes.Names(), nil, nil) // they are known
	return meshes
}

// ByFlag returns the error of [Of] with what named makes of each wrong key, by its flag.
func ByFlag(err error, named func(flag string, err error) error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	errs := slices.Clone(joined.Unwrap())
	for i, e := range errs {
		if key, ok := e.(*KeyError); ok { //nolint:errorlint // those of Of, which nothing wraps
			errs[i] = named(key.Flag, key.Err)
		}
	}
	return errors.Join(errs...)
}

// Flag puts a flag's name before its fault, as the agent's errors have it.
func Flag(name string, err error) error { return fmt.Errorf("%s: %w", name, err) }
