package netconf

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/conflist"
)

// Entry is the plugin's entry in force on a node, in the network configuration that the runtime loads.
type Entry struct {
	Config
	// File is the path of the file that has it.
	File string
	// Loaded is the file that the runtime loads instead, if another sorts before File; else it is empty. With
	// --cni-conf-name and for Multus that is meant.
	Loaded string
	// Network is the content of File.
	Network *conflist.File
	// Unknown are keys that mean nothing to this version.
	Unknown []string
}

// NoEntryError gives the reason that a node has no entry. Any other error means that it may have one.
type NoEntryError struct {
	Why string
	// NoDir: there is not even a directory of network configurations.
	NoDir bool
}

func (e *NoEntryError) Error() string { return e.Why }

// Find returns the entry of one of the types in a directory of network configurations, whose path is for messages. If there is none,
// errors.As finds a *[NoEntryError]. If a file that may have it cannot be read, it is another error.
func Find(fsys fs.FS, dir string, id meshcni.Identity, types []string) (Entry, error) {
	e, err := find(fsys, dir, id, types)
	var none *NoEntryError
	if err != nil && !errors.As(err, &none) {
		err = fmt.Errorf("read the installed configuration in %s: %w", dir, err)
	}
	return e, err
}

func find(fsys fs.FS, dir string, id meshcni.Identity, types []string) (Entry, error) {
	first, err := conflist.Primary(fsys)
	var network *conflist.NoNetworkError
	switch {
	case errors.As(err, &network):
		return Entry{}, &NoEntryError{Why: fmt.Sprintf("%s: %v", dir, err)}
	case err != nil:
		return Entry{}, err
	}
	if p, ok := ofTypes(first.File, types); ok {
		return entryOf(path.Join(dir, first.Name), first.File, p, id)
	}
	names, err := elsewhere(fsys, first.Name, types)
	switch {
	case err != nil:
		return Entry{}, err
	case len(names) == 0:
		return Entry{}, &NoEntryError{Why: fmt.Sprintf("%s, which the runtime loads, has no entry of type %s",
			path.Join(dir, first.Name), strings.Join(types, " or "))}
	case len(names) > 1:
		return Entry{}, fmt.Errorf("%s all have an entry of the plugin, and the runtime loads %s", strings.Join(names, ", "), first.Name)
	}
	data, err := fs.ReadFile(fsys, names[0])
	if err != nil {
		return Entry{}, err
	}
	e, err := FindIn(path.Join(dir, names[0]), data, id, types)
	e.Loaded = path.Join(dir, first.Name)
	return e, err
}

// elsewhere lists the other files that have an entry.
func elsewhere(fsys fs.FS, loaded string, types []string) (names []string, err error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() == loaded || e.IsDir() || !conflist.IsConfigName(e.Name()) {
			continue
		}
		data, err := fs.ReadFile(fsys, e.Name())
		if err != nil {
			if !conflist.PassedOver(err) {
				errs = append(errs, err)
			}
			continue
		}
		if f, err := conflist.ParseFile(e.Name(), data); err == nil {
			if _, ok := ofTypes(f, types); ok {
				names = append(names, e.Name())
			}
		}
	}
	if len(names) > 0 {
		return names, nil
	}
	return nil, errors.Join(errs...) // one of these may have it
}

// FindIn returns the entry of one of the types in a network configuration; a configuration of a single plugin is the entry,
// whatever its type. If there is none, errors.As finds a *[NoEntryError]. The path is for messages.
func FindIn(path string, data []byte, id meshcni.Identity, types []string) (Entry, error) {
	f, err := conflist.Parse(data)
	if err != nil {
		return Entry{}, fmt.Errorf("read the configuration %s: %w", path, err)
	}
	p, ok := ofTypes(f, types)
	switch {
	case ok:
		return entryOf(path, f, p, id)
	case !f.IsList():
		return entryOf(path, f, f.Plugins()[0], id)
	}
	return Entry{}, &NoEntryError{Why: fmt.Sprintf("%s has no entry of type %s", path, strings.Join(types, " or "))}
}

func ofTypes(f *conflist.File, types []string) (conflist.Plugin, bool) {
	all := f.Plugins()
	if i := slices.IndexFunc(all, func(p conflist.Plugin) bool { return slices.Contains(types, p.Type) }); i >= 0 {
		return all[i], true
	}
	return conflist.Plugin{}, false
}

func entryOf(path string, f *conflist.File, p conflist.Plugin, id meshcni.Identity) (Entry, error) {
	c, unknown, err := Parse(p.Raw, id)
	if err != nil {
		err = fmt.Errorf("%s, entry of type %s, with which no pod starts: %w", path, p.Type, err)
	}
	return Entry{Config: c, File: path, Network: f, Unknown: unknown}, err
}
