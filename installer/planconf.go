//go:build linux

package installer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
)

// convert makes the list that takes the place of a single configuration: whole and in place before the .conf steps aside,
// since until then the .conf, which sorts first, is what the runtime loads.
func (p *planner) convert(choice conflist.Choice) bool {
	found := choice.File.Bytes()
	p.Target = strings.TrimSuffix(choice.Name, filepath.Ext(choice.Name)) + ".conflist"
	list, err := conflist.ToList(found)
	if err == nil {
		list, err = conflist.Insert(list, p.entry)
	}
	if err != nil {
		return p.block("bad-entry", fmt.Errorf("%s: %w", choice.Name, err))
	}
	if !p.speaks(choice.Name, list) {
		return false
	}
	const cause = "conf-appeared"
	there, err := fs.ReadFile(p.o.Net, p.Target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.do(Action{Op: OpCreate, Path: p.path(p.Target), From: p.path(choice.Name), New: list, Cause: cause})
	case err != nil:
		return p.unreadable(p.Target, err)
	case bytes.Equal(there, list):
	case p.derived(there):
		p.do(Action{Op: OpReplace, Path: p.path(p.Target), Old: there, New: list, Cause: cause})
	default: // somebody's own, so far in the shadow of the .conf
		if clean, err := conflist.Remove(there, p.typ); err == nil && !bytes.Equal(clean, there) {
			p.do(Action{Op: OpReplace, Path: p.path(p.Target), Old: there, New: clean, Cause: cause})
			there = clean
		}
		p.do(Action{Op: OpMoveAside, From: p.path(p.Target), Path: p.path(p.Target + savedSuffix), Old: there, Cause: cause})
		p.do(Action{Op: OpCreate, Path: p.path(p.Target), From: p.path(choice.Name), New: list, Cause: cause})
	}
	p.do(Action{Op: OpMoveAside, From: p.path(choice.Name), Path: p.path(choice.Name + savedSuffix), Old: found, Cause: cause})
	return true
}

// derived tells whether we made the list from a single configuration, and nobody has changed it since: then its one plugin
// makes that very list again. What the configuration has become meanwhile does not matter; its owner may have rewritten it.
func (p *planner) derived(list []byte) bool {
	clean, err := conflist.Remove(list, p.typ)
	if err != nil {
		return false
	}
	f, err := conflist.Parse(clean)
	if err != nil || !f.IsList() || len(f.Plugins()) != 1 {
		return false
	}
	for _, end := range []string{"", "\n"} {
		made, err := conflist.ToList(append(bytes.Clone(f.Plugins()[0].Raw), end...))
		if err == nil && bytes.Equal(made, clean) {
			return true
		}
	}
	return false
}

func (p *planner) ownFile() bool {
	own := p.c.ownName()
	there, err := fs.ReadFile(p.o.Net, own)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return p.unreadable(own, err)
	}
	if f := p.parse(own); exists && len(bytes.TrimSpace(there)) > 0 && (f == nil || !f.Has(p.typ)) {
		return p.block("own-name-taken", fmt.Errorf("%s is somebody else's: choose another --cni-conf-name", p.path(own)))
	}
	choice, err := conflist.Primary(p.o.Net, append(p.oursAlone(), own)...)
	if err != nil {
		// What is there of ours stays: the owner's plugin refuses pods itself while its agent is away.
		return p.noChoice(err)
	}
	if own > choice.Name {
		return p.block("sorts-later", fmt.Errorf("%s sorts before %s, so the runtime would load it: set --cni-conf-name to a name before it", choice.Name, own))
	}
	list, err := conflist.ToList(choice.File.Bytes())
	if err == nil {
		list, err = conflist.Insert(list, p.entry)
	}
	if err != nil {
		return p.block("bad-entry", fmt.Errorf("%s: %w", choice.Name, err))
	}
	if !p.speaks(choice.Name, list) {
		return false
	}
	p.Target, p.Network, p.Passed = own, choice.File.Network(), choice.Skipped
	switch {
	case !exists:
		p.do(Action{Op: OpCreate, Path: p.path(own), From: p.path(choice.Name), New: list, Cause: "own-file-missing"})
	case !bytes.Equal(there, list):
		p.do(Action{Op: OpReplace, Path: p.path(own), Old: there, New: list, Cause: "own-file-outdated"})
	}
	p.stripExcept(own, true)
	return true
}

func (p *planner) standalone() bool {
	own := p.c.ownName()
	p.Target, p.Network = own, PluginName
	there, err := fs.ReadFile(p.o.Net, own)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.do(Action{Op: OpCreate, Path: p.path(own), New: p.entry, Cause: "own-file-missing"})
	case err != nil:
		return p.unreadable(own, err)
	case bytes.Equal(there, p.entry):
	default:
		if f := p.parse(own); len(bytes.TrimSpace(there)) > 0 && (f == nil || !f.Has(p.typ)) {
			return p.block("own-name-taken", fmt.Errorf("%s is somebody else's: choose another --cni-conf-name", p.path(own)))
		}
		p.do(Action{Op: OpReplace, Path: p.path(own), Old: there, New: p.entry, Cause: "own-file-outdated"})
	}
	p.stripExcept(own, true)
	return true
}

// stripExcept takes our entry out of every file but one. With giveBack, single configurations that were set aside return;
// else only if nothing of ours stands in their place.
func (p *planner) stripExcept(target string, giveBack bool) {
	entries, err := fs.ReadDir(p.o.Net, ".")
	if err != nil {
		return
	}
	done := []string{target}
	if giveBack {
		for _, e := range entries {
			if conf, ok := strings.CutSuffix(e.Name(), savedSuffix); ok && filepath.Ext(conf) != ".conflist" {
				done = append(done, p.giveBack(conf))
			}
		}
	}
	ours := p.oursAlone()
	for _, e := range entries {
		name := e.Name()
		if slices.Contains(done, name) || !conflist.IsConfigName(name) && !strings.HasSuffix(name, ciliumSuffix) {
			continue
		}
		f := p.parse(name)
		if f == nil || !f.Has(p.typ) {
			continue
		}
		remove := Action{Op: OpRemoveConf, Path: p.path(name), Old: f.Bytes(), Cause: "entry-elsewhere"}
		conf := strings.TrimSuffix(name, ".conflist") + ".conf"
		clean, err := conflist.Remove(f.Bytes(), p.typ)
		switch {
		case slices.Contains(ours, strings.TrimSuffix(name, ciliumSuffix)), err != nil:
			p.do(remove)
		case giveBack && p.exists(conf) && p.derived(f.Bytes()): // killed between giving back and this
			p.do(remove)
		default:
			p.do(Action{Op: OpReplace, Path: p.path(name), Old: f.Bytes(), New: clean, Cause: "entry-elsewhere"})
		}
	}
}

func (p *planner) exists(name string) bool {
	_, err := fs.ReadFile(p.o.Net, name)
	return !errors.Is(err, fs.ErrNotExist)
}

// giveBack returns a single configuration to its name, and then removes the list that stood for it. It gives the list's
// name when the list is thereby dealt with.
func (p *planner) giveBack(conf string) string {
	const cause = "given-back"
	list := strings.TrimSuffix(conf, filepath.Ext(conf)) + ".conflist"
	saved := conf + savedSuffix
	data, err := fs.ReadFile(p.o.Net, list)
	derived := err == nil && p.derived(data)
	switch {
	case err == nil && !derived:
		p.note("%s has been changed since it was made from %s: it stays, and the latter stays in %s", list, conf, saved)
		return ""
	case p.exists(conf): // its owner has written it anew
		if old, err := fs.ReadFile(p.o.Net, saved); err == nil {
			p.do(Action{Op: OpRemoveConf, Path: p.path(saved), Old: old, Cause: cause})
		}
	default:
		p.do(Action{Op: OpMoveBack, From: p.path(saved), Path: p.path(conf), Cause: cause})
	}
	if derived {
		p.do(Action{Op: OpRemoveConf, Path: p.path(list), Old: data, Cause: cause})
	}
	if p.exists(list + savedSuffix) {
		p.do(Action{Op: OpMoveBack, From: p.path(list + savedSuffix), Path: p.path(list), Cause: cause})
	}
	return list
}
