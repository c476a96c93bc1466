// Package installed reads the plugin's configuration that is in force on a node: its entry in the network configuration
// that the runtime loads.
package installed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Entry is the plugin's entry.
type Entry struct {
	netconf.Config
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

// NoneError gives the reason that a node has no entry. Any other error means that it may have one.
type NoneError struct {
	Why string
	// NoDir: there is not even a directory of network configurations.
	NoDir bool
}

func (e *NoneError) Error() string { return e.Why }

// Dir finds the entry of one of the types in a directory of network configurations. If there is none, errors.As finds a
// *[NoneError]. If a file that may have it cannot be read, it is another error.
func Dir(dir string, types []string) (Entry, error) {
	e, err := find(dir, types)
	var none *NoneError
	if err != nil && !errors.As(err, &none) {
		err = fmt.Errorf("read the installed configuration in %s: %w", dir, err)
	}
	return e, err
}

func find(dir string, types []string) (Entry, error) {
	fsys, done, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Entry{}, &NoneError{Why: dir + " is not there", NoDir: true}
	}
	if err != nil {
		return Entry{}, err
	}
	defer done()
	first, err := conflist.Primary(fsys)
	var network *conflist.NoNetworkError
	switch {
	case errors.As(err, &network):
		return Entry{}, &NoneError{Why: fmt.Sprintf("%s: %v", dir, err)}
	case err != nil:
		return Entry{}, err
	}
	if p, ok := plugin(first.File, types); ok {
		return parse(filepath.Join(dir, first.Name), first.File, p)
	}
	names, err := elsewhere(fsys, first.Name, types)
	switch {
	case err != nil:
		return Entry{}, err
	case len(names) == 0:
		return Entry{}, &NoneError{Why: fmt.Sprintf("%s, which the runtime loads, has no entry of type %s",
			filepath.Join(dir, first.Name), strings.Join(types, " or "))}
	case len(names) > 1:
		return Entry{}, fmt.Errorf("%s all have an entry of the plugin, and the runtime loads %s", strings.Join(names, ", "), first.Name)
	}
	data, err := fs.ReadFile(fsys, names[0])
	if err != nil {
		return Entry{}, err
	}
	e, err := Parse(filepath.Join(dir, names[0]), data, types)
	e.Loaded = filepath.Join(dir, first.Name)
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
			if _, ok := plugin(f, types); ok {
				names = append(names, e.Name())
			}
		}
	}
	if len(names) > 0 {
		return names, nil
	}
	return nil, errors.Join(errs...) // one of these may have it
}

// Parse finds the entry of one of the types in a network configuration; a configuration of a single plugin is the entry,
// whatever its type. If there is none, errors.As finds a *[NoneError]. The path is for messages.
func Parse(path string, data []byte, types []string) (Entry, error) {
	f, err := conflist.Parse(data)
	if err != nil {
		return Entry{}, fmt.Errorf("read the configuration %s: %w", path, err)
	}
	if p, ok := plugin(f, types); ok {
		return parse(path, f, p)
	}
	if !f.IsList() {
		return parse(path, f, f.Plugins()[0])
	}
	return Entry{}, &NoneError{Why: fmt.Sprintf("%s has no entry of type %s", path, strings.Join(types, " or "))}
}

func plugin(f *conflist.File, types []string) (conflist.Plugin, bool) {
	for _, p := range f.Plugins() {
		if slices.Contains(types, p.Type) {
			return p, true
		}
	}
	return conflist.Plugin{}, false
}

func parse(path string, f *conflist.File, p conflist.Plugin) (Entry, error) {
	c, unknown, err := netconf.Parse(p.Raw)
	if err != nil {
		err = fmt.Errorf("%s, entry of type %s, with which no pod starts: %w", path, p.Type, err)
	}
	return Entry{Config: c, File: path, Network: f, Unknown: unknown}, err
}

// hostPrefix is the place of the host's directories in containers. There an absolute link leads elsewhere than on the host.
const hostPrefix = "/host/"

// Open opens a directory of network configurations. It reads links only where they lead where they do on the host, and no file that would
// block the reader or is larger than a runtime takes.
func Open(dir string) (fs.FS, func(), error) {
	if !strings.HasPrefix(filepath.Clean(dir)+"/", hostPrefix) {
		_, err := os.Stat(dir)
		return files{os.DirFS(dir), dir}, func() {}, err
	}
	return openRoot(dir)
}

// openRoot opens a directory of which no link leads out.
func openRoot(dir string) (fs.FS, func(), error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	return files{root.FS(), dir}, func() { _ = root.Close() }, nil
}

// files is a directory whose files do not block who reads them.
type files struct {
	fs.FS
	dir string
}

// maxConfig is containerd's bound (github.com/containerd/go-cni, opts.go, MaxFileSize), in bytes.
const maxConfig = 2 << 20

// ReadFile implements fs.ReadFileFS.
func (f files) ReadFile(name string) ([]byte, error) {
	if to, err := os.Readlink(filepath.Join(f.dir, name)); err == nil && to == os.DevNull { // masked: as good as empty
		return []byte{}, nil
	}
	info, err := fs.Stat(f.FS, name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	case info.Size() > maxConfig:
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("larger than %d MiB", maxConfig>>20)}
	}
	return fs.ReadFile(f.FS, name)
}
