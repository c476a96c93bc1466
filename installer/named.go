//go:build linux

package installer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
)

// mention is a place in a configuration that needs something of ours to be on the node.
type mention struct {
	typ string
	// plugin: the entry's type is one of ours, so it needs our binary. Else it only has the path of our kubeconfig.
	plugin bool
	// broken: the text is no JSON, so all that can be told is that it has one of the words.
	broken bool
}

func (m mention) String() string {
	switch {
	case m.broken:
		return "is no JSON, and has the name of the plugin or of its kubeconfig in it"
	case m.plugin:
		return fmt.Sprintf("has an entry of type %q", m.typ)
	}
	return fmt.Sprintf("has an entry of type %q with our kubeconfig", m.typ)
}

// holdsEntries are the keys of an entry below which there are further ones: a list's, and those by which one plugin calls
// another (flannel, Multus).
var holdsEntries = map[string]bool{"plugins": true, "delegate": true, "delegates": true}

// mentions finds the entries of a configuration that are of one of the types or have the kubeconfig's path anywhere in them,
// whoever wrote them.
func mentions(data []byte, types []string, kubeconfig string) []mention {
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		// Half written, or to be mended by hand: it would be loaded then.
		for _, word := range append(quotedAll(types), kubeconfig, inRun(kubeconfig)) {
			if bytes.Contains(data, []byte(word)) {
				return []mention{{broken: true}}
			}
		}
		return nil
	}
	var found []mention
	add := func(m mention) {
		if !slices.Contains(found, m) {
			found = append(found, m)
		}
	}
	var walk func(v any, typ string, entry bool)
	walk = func(v any, typ string, entry bool) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				if s, ok := value.(string); ok && entry && strings.EqualFold(key, "type") && s != "" { // libcni decodes any case
					if typ = s; slices.Contains(types, s) {
						add(mention{typ: s, plugin: true})
					}
				}
			}
			for key, value := range v {
				walk(value, typ, entry && holdsEntries[strings.ToLower(key)])
			}
		case []any:
			for _, value := range v {
				walk(value, typ, entry)
			}
		case string:
			if strings.Contains(inRun(path.Clean(v)), inRun(kubeconfig)) && !slices.Contains(types, typ) {
				add(mention{typ: typ})
			}
		}
	}
	walk(doc, "", true)
	slices.SortFunc(found, func(a, b mention) int { return strings.Compare(a.typ, b.typ) })
	return found
}

func quotedAll(words []string) []string {
	var out []string
	for _, w := range words {
		out = append(out, string(marshalLine(w)))
	}
	return out
}

// inRun has one name for the directory that is both /run and /var/run (Filesystem Hierarchy Standard 3.0, 5.13).
func inRun(p string) string {
	if strings.HasPrefix(p, "/var/run/") {
		return strings.TrimPrefix(p, "/var")
	}
	return p
}

// stillNamed says, for each file of the configuration directory that a runtime loads, or would under another name, what of
// the types and the kubeconfig it names when the plan's actions are done. A file that cannot be read counts as one that
// names them.
func (p *planner) stillNamed(types []string) []string {
	files, errs := p.afterwards()
	var out []string
	for name, err := range errs {
		out = append(out, fmt.Sprintf("%s cannot be read, and may name them: %v", p.path(name), err))
	}
	for name, data := range files {
		for _, m := range mentions(data, types, onHost(p.c.kubeconfig())) {
			out = append(out, p.path(name)+" "+m.String())
		}
	}
	slices.Sort(out)
	return out
}

// afterwards are the files of the directory, and those of the directories that lists keep their plugins in, as they will be.
func (p *planner) afterwards() (files map[string][]byte, errs map[string]error) {
	files, errs = map[string][]byte{}, map[string]error{}
	read := func(name string) {
		data, err := fs.ReadFile(p.o.Net, name)
		switch {
		case err == nil:
			files[name] = data
		case !errors.Is(err, fs.ErrNotExist):
			errs[name] = err
		}
	}
	entries, err := fs.ReadDir(p.o.Net, ".")
	if err != nil {
		errs["."] = err
	}
	for _, e := range entries {
		if !e.IsDir() && ofInterest(e.Name()) {
			read(e.Name())
		}
	}
	p.apply(files)
	networks := map[string]bool{}
	for _, data := range files {
		if f, err := conflist.Parse(data); err == nil {
			networks[f.Network()] = true
		}
	}
	for _, e := range entries {
		inner, err := fs.ReadDir(p.o.Net, e.Name())
		if err != nil && !errors.Is(err, fs.ErrNotExist) && (e.IsDir() || networks[e.Name()] && e.Type()&fs.ModeSymlink != 0) {
			errs[e.Name()] = err
		}
		for _, f := range inner {
			if path.Ext(f.Name()) == ".conf" && !f.IsDir() {
				read(path.Join(e.Name(), f.Name()))
			}
		}
	}
	return files, errs
}

// apply does the plan's actions on files in memory.
func (p *planner) apply(files map[string][]byte) {
	for _, a := range p.Actions {
		to, from := filepath.Base(a.Path), filepath.Base(a.From)
		switch a.Op {
		case OpCreate, OpReplace:
			files[to] = a.New
		case OpMoveAside, OpMoveBack:
			if data, ok := files[from]; ok {
				files[to] = data
				delete(files, from)
			}
		case OpRemoveConf:
			delete(files, to)
		}
	}
}
