package conflist

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Loaded is the file that a runtime loads.
type Loaded struct {
	// Name is the file's name in its directory.
	Name string
	File *File
	// Skipped are the files that sort before Name and would not load, in that order.
	Skipped []Skipped
}

// ListName returns the name under which a list made from the named file is to be stored: the same name with the extension
// .conflist, because runtimes read lists from such files only. A .conf file sorts before the .conflist file of the same
// stem, so remove it once the list is in place.
func ListName(name string) string { return strings.TrimSuffix(name, path.Ext(name)) + ".conflist" }

// Skipped is a file that was passed over.
type Skipped struct {
	Name string
	Err  error
}

// NoNetworkError lists the reasons that no runtime would load any file of a directory.
type NoNetworkError struct{ Skipped []Skipped }

func (e *NoNetworkError) Error() string {
	var b strings.Builder
	b.WriteString("no valid network configuration")
	for i, s := range e.Skipped {
		b.WriteString([]string{": ", "; "}[min(i, 1)] + s.Name + ": " + s.Err.Error())
	}
	if len(e.Skipped) == 0 {
		b.WriteString(": no .conf, .conflist or .json file there")
	}
	return b.String()
}

// UnreadableError names a file that could not be read, so that a runtime may load it or not.
type UnreadableError struct {
	Name string
	Err  error
}

func (e *UnreadableError) Error() string {
	return e.Name + " cannot be read, so a runtime may load it or not: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *UnreadableError) Unwrap() error { return e.Err }

// PassedOver reports whether a runtime, too, would pass over a file that could not be read or parsed because of err: its
// content is invalid, or it does not exist (a dangling symbolic link). Any other error concerns the reader and not the
// file, and a runtime with other permissions or mounts may load it.
func PassedOver(err error) bool { return errors.Is(err, ErrInvalid) || errors.Is(err, fs.ErrNotExist) }

// IsConfigName reports whether a runtime looks at files of that name.
func IsConfigName(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
}

// Primary returns the file of a directory, such as os.DirFS("/etc/cni/net.d"), that a runtime loads: the first valid one
// of the .conf, .conflist and .json files, by name, hidden files included. Files named in ignore count as absent.
//
// An invalid file is passed over, as libcni and CRI-O do. containerd stops at it and reports the node as not ready, so
// Skipped is worth a warning. A list whose plugins are in a directory named after the network (CNI 1.1) is valid when those
// are. A single configuration without a network name counts as invalid: runtimes load it, and then fail every pod.
//
// If a file that sorts before the first valid one cannot be read, Primary cannot tell and returns an error; see
// [PassedOver].
//
// Errors: *[NoNetworkError], *[UnreadableError], or what reading the directory gave (errors.Is(err, fs.ErrNotExist)).
func Primary(fsys fs.FS, ignore ...string) (Loaded, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return Loaded{}, fmt.Errorf("list network configurations: %w", err)
	}
	var skipped []Skipped
	for _, e := range entries { // sorted by name
		name := e.Name()
		if !IsConfigName(name) || slices.Contains(ignore, name) {
			continue
		}
		f, err := readFile(fsys, e)
		if err == nil {
			return Loaded{name, f, skipped}, nil
		}
		if !PassedOver(err) {
			return Loaded{}, &UnreadableError{name, err}
		}
		skipped = append(skipped, Skipped{name, err})
	}
	return Loaded{}, &NoNetworkError{skipped}
}

func readFile(fsys fs.FS, e fs.DirEntry) (*File, error) {
	if e.IsDir() {
		return nil, fmt.Errorf("%w: a directory", ErrInvalid)
	}
	data, err := fs.ReadFile(fsys, e.Name())
	if err != nil {
		return nil, err
	}
	f, err := ParseFile(e.Name(), data)
	switch {
	case err != nil:
		return nil, err
	case f.single && f.name == "":
		return nil, errNameless
	case f.single:
		return f, nil
	}
	more, err := f.DropIns(fsys)
	if err != nil {
		return nil, err
	}
	if len(more)+len(f.plugins) == 0 {
		return nil, fmt.Errorf("%w: no plugins, neither inline nor in the directory %q", ErrInvalid, f.name)
	}
	return f, nil
}

// DropIns returns the plugins that a runtime loads behind the inline ones (CNI 1.1): those in the directory of fsys that has
// the network's name, in order. There are none in a single configuration, and none if the list asks for inlined plugins
// only. One bad file there makes the list invalid.
//
// Errors: [ErrInvalid], or what reading gave.
func (f *File) DropIns(fsys fs.FS) ([]Plugin, error) {
	if !f.dropIns || !fs.ValidPath(f.name) || f.name == "." { // the last two: outside of what we were given
		return nil, nil
	}
	entries, err := fs.ReadDir(fsys, f.name)
	if err != nil {
		if info, statErr := fs.Stat(fsys, f.name); errors.Is(err, fs.ErrNotExist) || statErr == nil && !info.IsDir() {
			return nil, nil
		}
		return nil, err
	}
	var plugins []Plugin
	for _, e := range entries {
		if e.IsDir() || path.Ext(e.Name()) != ".conf" {
			continue
		}
		data, err := fs.ReadFile(fsys, path.Join(f.name, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Join(f.name, e.Name()), err)
		}
		plugin, err := parseSingle(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Join(f.name, e.Name()), err)
		}
		plugins = append(plugins, plugin.plugins...)
	}
	return plugins, nil
}
