//go:build linux

package installer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/diskfile"
)

// goodList is the file with our entry as it was when the node was last in order. A copy is in the run directory, so that the
// next agent has it too.
type goodList struct {
	File string `json:"file"`
	Text string `json:"text"`
}

// goodPath is the file with the goodList. It is gone after a boot, when the network's owner writes its file anyway.
func (c Config) goodPath() string { return filepath.Join(c.RunDir, "network.json") }

// readGood returns the zero goodList if there is none.
func readGood(c Config) (good goodList) {
	if data, err := os.ReadFile(c.goodPath()); err != nil || json.Unmarshal(data, &good) != nil {
		return goodList{}
	}
	return good
}

// remember keeps the text of the target for the case that somebody breaks the file. On an error only g has it.
func (g *goodList) remember(c Config, target string, text []byte) error {
	now := goodList{target, string(text)}
	if now == *g || target == "" {
		return nil
	}
	*g = now
	data, err := json.Marshal(now)
	if err == nil {
		err = diskfile.Write(c.goodPath(), data, 0o600)
	}
	return explain(err, c.goodPath())
}

// restorable looks for a list of which no runtime can load what it is now, while it is known what it was. It returns that, and
// the broken text; nil if there is no such file.
//
// Without the file no pod of the node starts: containerd stops at a file that it cannot load, and CRI-O would take another
// network. The network's own part is thereby what it was; when its owner writes the file anew, that counts.
func (p *planner) restorable() (conflist.Loaded, []byte) {
	entries, err := fs.ReadDir(p.o.conf, ".")
	if err != nil {
		return conflist.Loaded{}, nil
	}
	choice, err := conflist.Primary(p.o.conf, p.oursAlone()...)
	skipped := choice.Skipped
	if none := (*conflist.NoNetworkError)(nil); errors.As(err, &none) {
		skipped = none.Skipped
	}
	for _, s := range skipped {
		if named := p.c.CNIConfName; named != "" && s.Name != conflist.ListName(named) {
			continue
		}
		plain := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == s.Name && e.Type().IsRegular() })
		broken, errRead := fs.ReadFile(p.o.conf, s.Name)
		if !plain || errRead != nil || err == nil && len(bytes.TrimSpace(broken)) == 0 {
			continue // a link is its owner's matter, and a file may have been emptied in favour of another
		}
		if f := p.intact(s.Name); f != nil {
			p.broken = s.Err
			return conflist.Loaded{Name: s.Name, File: f}, append([]byte{}, broken...)
		}
	}
	return conflist.Loaded{}, nil
}

// intact is a broken list's former content: as the last agent saw it, or as the list had been made of. It is nil if neither is there.
func (p *planner) intact(name string) *conflist.File {
	if p.o.good.File == name {
		if f, err := conflist.ParseFile(name, []byte(p.o.good.Text)); err == nil && f.IsList() {
			return f
		}
	}
	conf, isList := strings.CutSuffix(name, ".conflist")
	if !isList {
		return nil
	}
	f := p.parse(conf + ".conf" + savedSuffix)
	if f == nil || f.IsList() {
		return nil
	}
	list, err := conflist.ToList(f.Bytes())
	if err != nil {
		return nil
	}
	f, _ = conflist.Parse(list)
	return f
}

// brokenOwn reports whether a text that is no list was a file of ours: its name says so, or what is left of it does, or the last
// agent.
func (p *planner) brokenOwn(name string, data []byte) bool {
	return p.c.CNIConfName == "" || p.o.good.File == name || bytes.Contains(data, []byte(`"`+p.typ+`"`))
}
