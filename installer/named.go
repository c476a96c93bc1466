//go:build linux

package installer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/hostpath"
	"github.com/meshcni/meshcni/internal/node/inventory/cnicache"
)

// mention is a place in a configuration that needs something of ours on the node.
type mention struct {
	typ string
	// plugin: the entry's type is ours, so it needs our binary. Otherwise the entry contains the path of our kubeconfig.
	plugin bool
	// broken: the text is not JSON, but contains one of the names.
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

// mentions finds the entries that have one of the types, or the kubeconfig's path anywhere in them.
func mentions(data []byte, types []string, kubeconfig string) []mention {
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		// Half written, or to be repaired by hand: it would be loaded then.
		named := func(word string) bool { return bytes.Contains(data, []byte(word)) }
		quoted := func(typ string) bool { return named(strconv.Quote(typ)) }
		if slices.ContainsFunc(types, quoted) || named(kubeconfig) || named(inRun(kubeconfig)) {
			return []mention{{broken: true}}
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
					typ = s
					if slices.Contains(types, s) {
						add(mention{typ: s, plugin: true})
					}
				}
			}
			for key, value := range v {
				walk(value, typ, entry && cnicache.HoldsEntries(key))
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

// inRun writes /var/run as /run: they are the same directory (Filesystem Hierarchy Standard 3.0, 5.13).
func inRun(p string) string {
	if strings.HasPrefix(p, "/var/run/") {
		return strings.TrimPrefix(p, "/var")
	}
	return p
}

// stillNamed returns, for each file of the configuration directory that a runtime loads, or would load under another name,
// which of the types and the kubeconfig it names. A file that cannot be read counts as naming them.
func (p *planner) stillNamed(types []string) []string {
	networks := map[string]bool{} // whose lists may keep their plugins in a directory of that name
	for _, file := range p.o.conf.files {
		if f, err := conflist.Parse(file.data); err == nil {
			networks[f.Network()] = true
		}
	}
	var out []string
	for name, file := range p.o.conf.files {
		switch {
		case errors.Is(file.err, fs.ErrNotExist), file.err != nil && file.noConfig && !networks[name]:
		case file.err != nil:
			out = append(out, fmt.Sprintf("%s cannot be read, and may name them: %v", p.path(name), file.err))
		}
		for _, m := range mentions(file.data, types, hostpath.OnHost(p.c.kubeconfig())) {
			out = append(out, p.path(name)+" "+m.String())
		}
	}
	slices.Sort(out)
	return out
}

// stemOf returns what the names of a configuration file have in common: 10-x of 10-x.conf, 10-x.conflist.bak and so on.
func stemOf(name string) string {
	for _, ext := range []string{".conf", ".json"} {
		if i := strings.Index(name, ext); i >= 0 {
			return name[:i]
		}
	}
	return name
}
