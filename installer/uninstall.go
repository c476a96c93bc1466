//go:build linux

package installer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// uninstall is the reverse order: the list, the credentials, the binary, the last only when nothing will call it any more.
// What any entry still names is kept, whoever wrote that entry: without it no pod of the node would start, or end.
func (p *planner) uninstall() {
	types := p.types()
	if p.o.Net == nil {
		if !errors.Is(p.o.NetErr, fs.ErrNotExist) || p.o.Kubeconfig != nil || p.present(types) {
			p.block("conf-dir", explain(fmt.Errorf("reading the configuration directory, whose files may name what is to be removed: %w", p.o.NetErr), p.c.CNIConfDir))
		}
		return
	}
	for i, typ := range types {
		p.typ = typ
		before := len(p.Actions)
		p.stripExcept("", true)
		if len(p.Actions) > before && i < len(types)-1 {
			return // the next plan takes the next one, from what is there then
		}
	}
	named := append(p.stillNamed(types), p.o.Naming...)
	if p.o.AttachmentsErr != nil {
		named = append(named, fmt.Sprintf("it is unknown whether attachments need them: %v", p.o.AttachmentsErr))
	}
	if len(named) > 0 {
		p.block("still-named", fmt.Errorf("the plugin (%s) and its kubeconfig stay, because pods could not start or end without them: %s; "+
			"take these entries out, or uninstall with the settings that the plugin was installed with (--plugin-config), and uninstall again",
			strings.Join(types, ", "), strings.Join(named, "; ")))
		return
	}
	if p.o.Kubeconfig != nil {
		p.do(Action{Op: OpRemoveOther, Path: p.c.kubeconfig(), Cause: "uninstall"})
	}
	if len(p.o.Attachments) > 0 {
		p.note("the binary stays to answer the DEL of %d attachments made with it (%s): uninstall again when they are gone",
			len(p.o.Attachments), strings.Join(p.o.Attachments[:min(5, len(p.o.Attachments))], ", "))
		return
	}
	for _, dir := range p.o.BinDirs {
		for _, typ := range types {
			if dir.has(typ, pluginType(p.entry)) {
				p.do(Action{Op: OpRemoveOther, Path: filepath.Join(dir.Path, typ), Cause: "uninstall"})
			}
		}
	}
	for _, path := range p.o.Left { // by a plugin that nobody calls any more
		p.do(Action{Op: OpRemoveOther, Path: path, Cause: "uninstall"})
	}
}

// types are those that the plugin has been installed as.
func (p *planner) types() []string {
	types := []string{p.typ}
	for _, t := range p.o.Types {
		if !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}

func (p *planner) present(types []string) bool {
	return slices.ContainsFunc(p.o.BinDirs, func(d BinDir) bool {
		return slices.ContainsFunc(types, func(t string) bool { return d.has(t, p.typ) })
	})
}

// has tells whether a plugin of the type is there; Present speaks of the one that is installed now.
func (d BinDir) has(typ, now string) bool {
	return typ == now && d.Present || slices.Contains(d.Names, typ)
}

// recordOf is the record of types, a line each.
func recordOf(types []string) []byte { return []byte(strings.Join(types, "\n") + "\n") }

// recorded reads a record; what is no type is left out.
func recorded(data []byte) []string {
	var types []string
	for line := range strings.Lines(string(data)) {
		if t := strings.TrimSpace(line); typeName.MatchString(t) && !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}
