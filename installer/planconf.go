//go:build linux

package installer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
)

// conf plans the change of the network configuration. It returns false if that is blocked.
func (p *planner) conf() bool {
	switch {
	case p.o.conf == nil:
		return p.block(codeConfDir, fmt.Errorf("reading the configuration directory: %w", p.o.confErr))
	case !p.c.Chained:
		return p.standalone()
	case p.keepsOwn():
		return p.ownFile()
	}
	return p.chained()
}

// keepsOwn reports whether our own file is the target. With SwitchAuto that is so once it has been taken, which its existence
// tells an agent that has begun since. It is not taken beside a plugin that delegates, which would delegate to it.
func (p *planner) keepsOwn() bool {
	switch there := p.exists(p.c.ownName()); {
	case p.c.OwnFile != SwitchAuto:
		return p.c.OwnFile == SwitchOn
	case there || !p.o.taken:
		return there
	}
	first, err := conflist.Primary(p.o.conf, p.oursAlone()...)
	return err != nil || delegating(first.File) == ""
}

func (p *planner) chained() bool {
	if p.returned(); p.c.CNIConfName == "" {
		p.left = p.abandoned()
	}
	choice, ok := p.choose()
	if !ok {
		return false
	}
	p.Target = choice.Name
	if !choice.File.IsList() {
		p.Target = conflist.ListName(choice.Name)
	}
	list, ok := p.withEntry(choice, p.Target)
	if !ok {
		return false
	}
	p.Skipped, p.Network = choice.Skipped, choice.File.Network()
	found := choice.File.Bytes()
	if !choice.File.IsList() {
		if !p.convert(choice, list) {
			return false
		}
	} else if !bytes.Equal(list, found) {
		cause := p.unlessFirst(causeEntryRemoved)
		if choice.File.Has(p.typ) {
			cause = causeEntryChanged
		}
		p.do(action{Op: opReplace, Path: p.path(choice.Name), Old: found, New: list, Cause: cause})
	}
	for _, list := range p.left {
		p.leave(list)
	}
	p.stripExcept(p.Target, false)
	return true
}

// unlessFirst returns cause, or causeFirstInstall for a target that has not had the entry before.
func (p *planner) unlessFirst(cause cause) cause {
	if p.o.held[p.Target] {
		return cause
	}
	return causeFirstInstall
}

// withEntry returns the chosen list with our entry, for the target. It refuses a version that the plugin does not support, because no pod
// could start, and a list that would delegate to itself.
func (p *planner) withEntry(choice conflist.Loaded, target string) ([]byte, bool) {
	list, err := conflist.ToList(choice.File.Bytes())
	if err == nil {
		list, err = conflist.Insert(list, p.entry)
	}
	switch {
	case errors.Is(err, conflist.ErrNoInlinePlugins):
		return nil, p.block(codeNoInlinePlugins, fmt.Errorf("%s: %w: list them in the file, or name another with --cni-conf-name", choice.Name, err))
	case err != nil:
		return nil, p.block(codeBadEntry, fmt.Errorf("%s: %w", choice.Name, err))
	}
	if f, err := conflist.Parse(list); err == nil && !p.whole(target, f) {
		return nil, false
	}
	return list, p.spoken(choice.Name, list, "have the network's owner declare one of these")
}

// spoken reports whether the plugin supports the version of a configuration that would have it.
func (p *planner) spoken(name string, config []byte, remedy string) bool {
	f, err := conflist.Parse(config)
	if err != nil || p.o.supports == nil {
		return true
	}
	version := cmp.Or(f.CNIVersion(), "0.1.0") // what the specification takes none for
	return slices.Contains(p.o.supports, version) || p.block(codeUnsupportedVersion, fmt.Errorf("%s has cniVersion %q, and the plugin speaks %s: "+
		"with it in that list no pod could start; %s", name, f.CNIVersion(), strings.Join(p.o.supports, ", "), remedy))
}

// choose returns the file to chain into: the named one, or the one that the runtime would load without ours.
func (p *planner) choose() (conflist.Loaded, bool) {
	named := p.c.CNIConfName
	if named == "" {
		choice, err := conflist.Primary(p.o.conf, append(p.oursAlone(), p.left...)...)
		if err != nil && len(p.left) > 0 { // there is no other network
			p.left = nil
			return p.choose()
		}
		return choice, err == nil || p.noChoice(err)
	}
	list := conflist.ListName(named)
	var errs []error
	for _, name := range slices.Compact([]string{named, strings.TrimSuffix(list, "list"), list}) {
		data, err := fs.ReadFile(p.o.conf, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var f *conflist.File
		if err == nil {
			if f, err = conflist.ParseFile(name, data); err == nil {
				return conflist.Loaded{Name: name, File: f}, true
			}
		}
		if !conflist.PassedOver(err) {
			return conflist.Loaded{}, p.unreadable(name, err)
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	if len(errs) == 0 {
		errs = append(errs, errors.New("no such file"))
	}
	return conflist.Loaded{}, p.block(codeNamedFileMissing, fmt.Errorf("looking for %s in %s: %w", named, p.c.CNIConfDir, errors.Join(errs...)))
}

// noChoice blocks for an error of conflist.Primary. It does not pass over an unreadable file: the runtime may load it, and
// the next one would then be the wrong target.
func (p *planner) noChoice(err error) bool {
	var unreadable *conflist.UnreadableError
	if errors.As(err, &unreadable) {
		return p.unreadable(unreadable.Name, unreadable.Err)
	}
	return p.block(codeNoNetwork, fmt.Errorf("%s: %w", p.c.CNIConfDir, err))
}

func (p *planner) unreadable(name string, err error) bool {
	return p.block(codeConfUnreadable, explain(fmt.Errorf("%w; nothing is changed until it can be read or is gone",
		&conflist.UnreadableError{Name: p.path(name), Err: err}), p.path(name)))
}

// oursAlone returns the names of files that are entirely ours.
func (p *planner) oursAlone() []string {
	chained, alone := Config{Plugin: p.c.Plugin, Chained: true}, Config{Plugin: p.c.Plugin}
	return slices.DeleteFunc([]string{p.c.ownName(), chained.ownName(), alone.ownName()}, func(name string) bool {
		f := p.parse(name)
		return f == nil || !f.Has(p.typ)
	})
}

// parse returns nil if the file cannot be read or is invalid.
func (p *planner) parse(name string) *conflist.File {
	data, err := fs.ReadFile(p.o.conf, name)
	if err != nil {
		return nil
	}
	f, _ := conflist.Parse(data)
	return f
}

// convert replaces a single configuration by a list. The list is in place before the .conf steps aside: until then the
// runtime loads the .conf, which sorts first.
func (p *planner) convert(choice conflist.Loaded, list []byte) bool {
	cause := p.unlessFirst(causeConfAppeared)
	create := action{Op: opCreate, Path: p.path(p.Target), From: p.path(choice.Name), New: list, Cause: cause}
	there, err := fs.ReadFile(p.o.conf, p.Target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.do(create)
	case err != nil:
		return p.unreadable(p.Target, err)
	case bytes.Equal(there, list):
	case p.derived(there):
		p.do(action{Op: opReplace, Path: p.path(p.Target), Old: there, New: list, Cause: cause})
	default: // somebody else's list, which the .conf has hidden
		if clean, err := conflist.Remove(there, p.typ); err == nil && !bytes.Equal(clean, there) {
			p.do(action{Op: opReplace, Path: p.path(p.Target), Old: there, New: clean, Cause: cause})
			there = clean
		}
		p.do(action{Op: opMoveAside, From: p.path(p.Target), Path: p.path(p.Target + p.savedSuffix()), Old: there, Cause: cause})
		p.do(create)
	}
	p.do(action{Op: opMoveAside, From: p.path(choice.Name), Path: p.path(choice.Name + p.savedSuffix()), Old: choice.File.Bytes(), Cause: cause})
	return true
}

// derived reports whether we made the list from a single configuration and nobody has changed it since. Its one plugin then
// yields the same list again. The configuration itself may have changed meanwhile.
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

// readOwn reads the file that is entirely ours; nil if there is none. It refuses a file without our entry.
func (p *planner) readOwn(name string) (data []byte, ok bool) {
	data, err := fs.ReadFile(p.o.conf, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, true
	case err != nil:
		return nil, p.unreadable(name, err)
	}
	switch f, err := conflist.Parse(data); {
	case len(bytes.TrimSpace(data)) == 0, err != nil && p.brokenOwn(data), err == nil && f.Has(p.typ):
	case err != nil:
		return nil, p.block(codeOwnNameTaken, fmt.Errorf("%s is broken, so it does not say whose it is: remove it, or choose another --cni-conf-name: %w", p.path(name), err))
	default:
		return nil, p.block(codeOwnNameTaken, fmt.Errorf("%s is somebody else's: remove it, or set --own-file=true and another --cni-conf-name", p.path(name)))
	}
	return append([]byte{}, data...), true
}

// brokenOwn reports whether a text that is no list was a file of ours: its name says so, or what is left of it does.
func (p *planner) brokenOwn(data []byte) bool {
	return p.c.CNIConfName == "" || bytes.Contains(data, []byte(`"`+p.typ+`"`))
}

// writeOwn writes the target, which is entirely ours, and takes our entry out of every other file.
func (p *planner) writeOwn(there, data []byte, like string) bool {
	switch {
	case there == nil:
		cause := p.unlessFirst(causeOwnFileMissing)
		if p.o.taken && cause == causeFirstInstall {
			cause = causeOwnFileTaken
		}
		p.do(action{Op: opCreate, Path: p.path(p.Target), From: like, New: data, Cause: cause})
	case !bytes.Equal(there, data):
		p.do(action{Op: opReplace, Path: p.path(p.Target), Old: there, New: data, Cause: causeOwnFileOutdated})
	}
	p.stripExcept(p.Target, true)
	return true
}

func (p *planner) ownFile() bool {
	own := p.c.ownName()
	there, ok := p.readOwn(own)
	if !ok {
		return false
	}
	named := p.c.OwnFile == SwitchAuto && p.c.CNIConfName != ""
	first, err := conflist.Primary(p.o.conf, append(p.oursAlone(), own)...)
	if err != nil && !named {
		return p.noChoice(err) // our file stays: the owner's plugin refuses pods itself while its agent is away
	}
	choice := first
	if named {
		if choice, ok = p.choose(); !ok {
			return false
		}
	}
	if own > first.Name && first.Name != "" {
		choice = first
		return p.block(codeSortsLater, fmt.Errorf("%s sorts before %s, so the runtime would load it: set --own-file=true and --cni-conf-name to a name before it", choice.Name, own))
	}
	for _, file := range []*conflist.File{first.File, choice.File} {
		if file == nil {
			continue
		}
		if typ := delegating(file); typ != "" {
			return p.block(codeSelfDelegating, fmt.Errorf("%s would take the place of %s in %s, which delegates to the cluster's network, and takes the first list for that: "+
				"set --own-file=false (chart: cni.ownFile=false), so that our entry goes into its list, and restart it", own, typ, p.path(choice.Name)))
		}
	}
	list, ok := p.withEntry(choice, own)
	if !ok {
		return false
	}
	p.Target, p.Network, p.Skipped = own, choice.File.Network(), choice.Skipped
	return p.writeOwn(there, list, p.path(choice.Name))
}

func (p *planner) standalone() bool {
	own := p.c.ownName()
	there, ok := p.readOwn(own)
	if !ok || !p.spoken("the plugin's configuration template", p.entry, "correct it") {
		return false
	}
	p.Target, p.Network = own, p.c.Plugin.Type
	return p.writeOwn(there, p.entry, "")
}

// stripExcept takes our entry out of every file but one. With giveBack, single configurations that were set aside return,
// unless their list has been changed.
func (p *planner) stripExcept(target string, giveBack bool) {
	entries, err := fs.ReadDir(p.o.conf, ".")
	if err != nil {
		return
	}
	done := append([]string{target}, p.left...)
	for _, e := range entries {
		conf, saved := strings.CutSuffix(e.Name(), p.savedSuffix())
		if giveBack && saved && filepath.Ext(conf) != ".conflist" {
			done = append(done, p.giveBack(conf))
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
		strip := action{Op: opRemoveConf, Path: p.path(name), Old: f.Bytes(), Cause: causeEntryElsewhere}
		clean, err := conflist.Remove(f.Bytes(), p.typ)
		conf := strings.TrimSuffix(name, ".conflist") + ".conf"
		givenBack := giveBack && p.exists(conf) && p.derived(f.Bytes()) // killed between giving back and removing
		if err == nil && !givenBack && !slices.Contains(ours, strings.TrimSuffix(name, ciliumSuffix)) {
			strip.Op, strip.New = opReplace, clean
		}
		p.do(strip)
	}
}

func (p *planner) exists(name string) bool {
	_, err := fs.ReadFile(p.o.conf, name)
	return !errors.Is(err, fs.ErrNotExist)
}

// giveBack renames a single configuration to its old name and then removes the list that replaced it. It returns the list's
// name, or "" if the list stays.
func (p *planner) giveBack(conf string) string {
	list, saved := conflist.ListName(conf), conf+p.savedSuffix()
	data, err := fs.ReadFile(p.o.conf, list)
	derived := err == nil && p.derived(data)
	if _, abandoned := p.madeOf(list); abandoned && !p.exists(conf) {
		p.leave(list)
		return list
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && !p.exists(conf) && !p.exists(list+ciliumSuffix):
		p.note("%s, which was made from %s, has been removed by somebody else: the latter stays in %s, and does not come back", list, conf, saved)
		return ""
	case err == nil && !derived:
		p.note("%s has been changed since it was made from %s: it stays, and the latter stays in %s", list, conf, saved)
		return ""
	case p.exists(conf): // its owner has written it anew
		if old, err := fs.ReadFile(p.o.conf, saved); err == nil {
			p.do(action{Op: opRemoveConf, Path: p.path(saved), Old: old, Cause: causeGivenBack})
		}
	default:
		p.do(action{Op: opMoveBack, From: p.path(saved), Path: p.path(conf), Cause: causeGivenBack})
	}
	if derived {
		p.do(action{Op: opRemoveConf, Path: p.path(list), Old: data, Cause: causeGivenBack})
	}
	p.unhide(list)
	return list
}

// unhide gives a list that a .conf had hidden, and that was set aside for the one made of that, its name back.
func (p *planner) unhide(list string) {
	if p.exists(list + p.savedSuffix()) {
		p.do(action{Op: opMoveBack, From: p.path(list + p.savedSuffix()), Path: p.path(list), Cause: causeGivenBack})
	}
}
