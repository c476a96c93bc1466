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

// planUninstall takes everything back in reverse order: first the entries; once none is left, the kubeconfig; the binary
// when no attachment needs it for its DEL. Whatever an entry still names stays, whoever wrote it: otherwise pods could not
// start, or end.
func planUninstall(c Config, o observed) Plan {
	p, _ := newPlanner(c, o) // an invalid template does not keep anything on the node
	p.uninstalling = true
	p.hookPlugin()
	types := typesOf(p.typ, o)
	if o.conf == nil {
		if !errors.Is(o.confErr, fs.ErrNotExist) || o.kubeconfig != nil || slices.ContainsFunc(types, p.installed) {
			p.block(codeConfDir, fmt.Errorf("reading the configuration directory, whose files may name what is to be removed: %w", o.confErr))
		}
		return p.Plan
	}
	p.returned()
	for _, p.typ = range types {
		if p.stripExcept("", true); slices.ContainsFunc(p.actions, action.conf) {
			return p.Plan // the next plan is for what is then there
		}
	}
	if p.blockNamed(types); len(p.Blocked) > 0 {
		return p.Plan
	}
	if o.kubeconfig != nil {
		p.remove(c.kubeconfig())
	}
	for _, path := range o.past {
		p.remove(path)
	}
	if n := len(o.attachments); n > 0 {
		p.note("the binary stays to answer the DEL of %d attachments made with it (%s): uninstall again when they are gone",
			n, strings.Join(o.attachments[:min(5, n)], ", "))
		return p.Plan
	}
	for _, dir := range o.binDirs {
		for _, typ := range types {
			if dir.Has(typ) {
				p.remove(filepath.Join(dir.Path, typ))
			}
		}
	}
	for _, path := range o.left {
		p.remove(path)
	}
	return p.Plan
}

func (p *planner) remove(path string) {
	p.do(action{Op: opRemoveOther, Path: path, Cause: causeUninstall})
}

func (p *planner) installed(typ string) bool {
	return slices.ContainsFunc(p.o.binDirs, func(d BinDir) bool { return d.Has(typ) })
}

// blockNamed blocks while a configuration of the directory or of the cache needs the plugin or its kubeconfig.
func (p *planner) blockNamed(types []string) {
	named := append(p.stillNamed(types), p.o.naming...)
	if p.o.attachmentsErr != nil {
		named = append(named, fmt.Sprintf("it is unknown whether attachments need them: %v", p.o.attachmentsErr))
	}
	if len(named) > 0 {
		p.block(codeStillNamed, fmt.Errorf("the plugin (%s) and its kubeconfig stay, because pods could not start or end without them: %s; "+
			"take these entries out, or uninstall with the settings that the plugin was installed with (--plugin-config), and uninstall again",
			strings.Join(types, ", "), strings.Join(named, "; ")))
	}
}

// typesOf lists the types under which the plugin has been installed: the present one and those on record.
func typesOf(typ string, o observed) []string {
	return append([]string{typ}, slices.DeleteFunc(slices.Clone(o.types), func(t string) bool { return t == typ })...)
}

// recordOf renders a record of types, one a line.
func recordOf(types []string) []byte { return []byte(strings.Join(types, "\n") + "\n") }

// recorded reads a record and leaves out what is no type.
func recorded(data []byte) []string {
	var types []string
	for line := range strings.Lines(string(data)) {
		if t := strings.TrimSpace(line); fileName.MatchString(t) && !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}
