//go:build linux

package installer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/hostpath"
)

// program is the file of a plugin's name in a directory of plugins.
type program struct {
	// err tells why it cannot be run; nil if it can, or if that cannot be told from here.
	err error
	// passed: the runtime passes it over and looks in its next directory (libcni's invoke.FindInPath).
	passed bool
}

// programOf judges a file of a directory of plugins as the host sees it.
func programOf(in func() mounted, dir string, e fs.DirEntry) program {
	file := filepath.Join(dir, e.Name())
	if e.Type()&fs.ModeSymlink != 0 {
		real, err := in().follow(file)
		if errors.Is(err, fs.ErrNotExist) {
			return program{fmt.Errorf("%s is a link to nothing", file), true}
		} else if err != nil {
			return program{} // the host sees what this process does not
		}
		file = real
	}
	switch info, err := os.Stat(file); {
	case errors.Is(err, fs.ErrNotExist): // removed just now
		return program{err, true}
	case err != nil:
		return program{}
	case !info.Mode().IsRegular():
		return program{fmt.Errorf("%s is no file", file), true}
	case info.Mode()&0o111 == 0:
		return program{err: fmt.Errorf("%s is not executable", file)}
	}
	return program{}
}

// errAbsent: a plugin's program is in no directory of plugins.
var errAbsent = errors.New("there is no such program")

// cannotRun returns why a runtime cannot run the plugin; nil if it can, or if that cannot be told.
func (p *planner) cannotRun(typ string) error {
	if typ == p.typ {
		return nil // see binaries
	}
	var seen error
	var dirs []string
	for _, dir := range p.o.binDirs {
		found, there := dir.programs[typ]
		switch {
		case dir.Err != nil:
			return nil // which blocks by itself
		case there && !found.passed:
			return found.err
		case there:
			seen = cmp.Or(seen, found.err)
		}
		dirs = append(dirs, dir.Path)
	}
	return cmp.Or(seen, fmt.Errorf("%w in %s", errAbsent, strings.Join(dirs, ", ")))
}

// runsIPAM are the plugins that run the program of their "ipam" themselves, on the host. Others may have it built in.
var runsIPAM = []string{"bridge", "calico", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan"}

// called are the keys by which an entry calls other plugins: that of Multus, of those that are like it, and of flannel.
type called struct {
	Type                   string
	Plugins, Delegates     []json.RawMessage
	Delegate               *called
	IPAM                   struct{ Type string }
	ClusterNetwork, BinDir string
	ReadinessIndicatorFile string
}

// delegates reports whether the entry has others set up the pod's network, which it may look for in the directory.
func (c called) delegates() bool {
	return len(c.Delegates) > 0 || c.ClusterNetwork != "" || c.ReadinessIndicatorFile != ""
}

// delegating returns the type of the plugin of the file that delegates; empty if none does.
func delegating(f *conflist.File) string {
	for _, plugin := range f.Plugins() {
		var c called
		_ = json.Unmarshal(plugin.Raw, &c)
		if c.delegates() {
			return plugin.Type
		}
	}
	return ""
}

// whole looks through all that a pod meets with the list, which is to be the target: it blocks where that is not there, and
// returns false, so that the list is not written, where it comes back to itself.
func (p *planner) whole(target string, f *conflist.File) bool {
	w := &walk{planner: p, target: target}
	w.file(target, f)
	if len(w.missing) > 0 {
		slices.Sort(w.missing)
		p.unwhole = append(p.unwhole, &BlockedError{codeNotWhole, fmt.Errorf("with %s no pod can start: %s; install what is missing, or take it out of the list; "+
			"if the runtime has other directories of plugins, give each with --cni-bin-dir", p.path(target), strings.Join(slices.Compact(w.missing), "; "))})
	}
	return w.loop == nil || p.block(codeSelfDelegating, w.loop)
}

// walk follows a list through the files and entries that it delegates to.
type walk struct {
	*planner
	target  string
	files   []string // from the target to the present one
	missing []string
	loop    error
}

func (w *walk) file(name string, f *conflist.File) {
	w.files = append(w.files, name)
	more, _ := f.DropIns(w.o.conf) // a list with bad ones is not chosen
	for _, plugin := range append(slices.Clone(f.Plugins()), more...) {
		w.entry(plugin.Raw, nil)
	}
	w.files = w.files[:len(w.files)-1]
}

// entry looks at a plugin's entry; above are the types of those that delegate to it.
func (w *walk) entry(raw []byte, above []string) {
	var c called
	_ = json.Unmarshal(raw, &c) // of a field with another type than Multus' it knows nothing
	for _, inner := range c.Plugins {
		w.entry(inner, above)
	}
	if c.Type == "" {
		return
	}
	w.needs(c.Type)
	if slices.Contains(runsIPAM, c.Type) && c.IPAM.Type != "" {
		w.needs(c.IPAM.Type)
	}
	if c.Type == "flannel" {
		bridge := "bridge"
		if c.Delegate != nil {
			bridge = cmp.Or(c.Delegate.Type, bridge)
		}
		w.needs(bridge)
	}
	if !c.delegates() {
		return
	}
	if slices.Contains(above, c.Type) {
		w.loop = fmt.Errorf("in %s %s delegates to itself: have it delegate to the cluster's network only", w.path(w.target), c.Type)
		return
	}
	before := len(w.missing)
	for _, inner := range c.Delegates {
		w.entry(inner, append(above, c.Type))
	}
	if c.BinDir != "" && !slices.ContainsFunc(w.o.binDirs, func(d BinDir) bool { return hostpath.OnHost(d.Path) == c.BinDir }) {
		w.missing = w.missing[:before] // it looks in a directory that cannot be seen
	}
	for _, file := range []string{c.ClusterNetwork, c.ReadinessIndicatorFile} {
		w.refers(c.Type, file)
	}
}

// needs notes that a plugin cannot be run.
func (w *walk) needs(typ string) {
	if err := w.cannotRun(typ); err != nil {
		w.missing = append(w.missing, fmt.Sprintf("%s names the plugin %q: %v", w.files[len(w.files)-1], typ, err))
	}
}

// refers follows the path of a file that a plugin delegates to, or waits for. It is the plugin's path, from its own container; of
// another directory's files nothing can be told.
func (w *walk) refers(typ, file string) {
	if !path.IsAbs(file) {
		return
	}
	name := path.Base(file)
	if slices.ContainsFunc(w.files, func(f string) bool { return stemOf(f) == stemOf(name) }) {
		w.loop = fmt.Errorf("in %s %s delegates to %s, and so to itself: have it delegate to the cluster's network, and restart it", w.path(w.target), typ, file)
		return
	}
	gone := slices.Contains(w.oursAlone(), name) // it goes when the entry is elsewhere
	if f := w.parse(name); f != nil && !gone {
		w.file(name, f)
	} else if here := strings.HasSuffix(path.Dir(file), hostpath.OnHost(w.c.CNIConfDir)); here && (gone || !w.exists(name)) {
		w.missing = append(w.missing, fmt.Sprintf("%s names %s, which is not there, or goes: restart %s, so that it looks for the cluster's network anew", w.files[len(w.files)-1], file, typ))
	}
}

// savedSuffix ends the name of a .conf that a list replaced, and goneSuffix that of one whose list was abandoned.
func (p *planner) savedSuffix() string { return "." + p.c.Identity.WithDefaults().Name + "-saved" }
func (p *planner) goneSuffix() string  { return "." + p.c.Identity.WithDefaults().Name + "-gone" }

// abandoned are the lists made of a .conf whose owner has removed its plugin since: the program was there with the list, and is in no
// directory of plugins any more. Such an owner cannot have found the .conf, which was set aside.
func (p *planner) abandoned() (lists []string) {
	entries, err := fs.ReadDir(p.o.conf, ".")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if conf, ok := p.madeOf(e.Name()); ok && !p.exists(conf) {
			lists = append(lists, e.Name())
		}
	}
	return lists
}

// madeOf returns the .conf of a list that outlived its plugin.
func (p *planner) madeOf(list string) (conf string, ok bool) {
	stem, isList := strings.CutSuffix(list, ".conflist")
	if !isList {
		return "", false
	}
	for _, ext := range []string{".conf", ".json"} {
		conf = stem + ext
		if p.exists(conf+p.goneSuffix()) || p.o.whole == list && p.exists(conf+p.savedSuffix()) {
			f := p.parse(list)
			return conf, f != nil && p.derived(f.Bytes()) && errors.Is(p.cannotRun(f.Plugins()[0].Type), errAbsent)
		}
	}
	return "", false
}

// leave removes an abandoned list. The .conf stays under another name until an uninstall, because the program may only be replaced.
func (p *planner) leave(list string) {
	conf, _ := p.madeOf(list)
	if saved, err := fs.ReadFile(p.o.conf, conf+p.savedSuffix()); err == nil {
		p.do(action{Op: opMoveAside, From: p.path(conf + p.savedSuffix()), Path: p.path(conf + p.goneSuffix()), Old: saved, Cause: causeOwnerGone})
	}
	p.do(action{Op: opRemoveConf, Path: p.path(list), Old: p.parse(list).Bytes(), Cause: causeOwnerGone})
	p.unhide(list)
}

// returned brings an abandoned list back once its plugin's program is there again; an uninstall, the .conf. Where the program is not, an
// uninstall removes what is left of them.
func (p *planner) returned() {
	entries, err := fs.ReadDir(p.o.conf, ".")
	if err != nil {
		return
	}
	for _, e := range entries {
		conf, is := strings.CutSuffix(e.Name(), p.goneSuffix())
		f := p.parse(e.Name())
		if !is || f == nil || f.IsList() {
			continue
		}
		list, absent := conflist.ListName(conf), errors.Is(p.cannotRun(f.Plugins()[0].Type), errAbsent)
		switch {
		case p.exists(conf), absent && p.uninstalling: // its owner has written it anew, or is gone
			p.do(action{Op: opRemoveConf, Path: p.path(e.Name()), Old: f.Bytes(), Cause: causeOwnerGone})
		case absent:
		case p.uninstalling && !p.exists(list):
			p.do(action{Op: opMoveBack, From: p.path(e.Name()), Path: p.path(conf), Cause: causeOwnerBack})
		default:
			if !p.exists(list) { // which is in place before the runtime can load it without our entry
				made, ok := p.withEntry(conflist.Loaded{Name: conf, File: f}, list)
				if !ok {
					continue
				}
				p.do(action{Op: opCreate, From: p.path(e.Name()), Path: p.path(list), New: made, Cause: causeOwnerBack})
			}
			p.do(action{Op: opMoveAside, From: p.path(e.Name()), Path: p.path(conf + p.savedSuffix()), Old: f.Bytes(), Cause: causeOwnerBack})
		}
	}
}
