//go:build linux

package installer

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/internal/node/hookfile"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// hooked lists our files in the runtime's directory of plugins of its hook.
type hooked struct {
	hookfile.Place
	current  bool   // the program is the one to install
	link     string // what the link leads to; empty: there is none
	settings []byte
	there    []string // all of it, in the order in which it is taken back
}

func (o *observer) hook(c Config, source [sha256.Size]byte) (h hooked) {
	if c.HookDir == "" {
		return h
	}
	h.Place = hookfile.In(c.HookDir, c.Identity.WithDefaults().Plugin)
	sum, mode, err := o.digest(h.Program)
	h.current = err == nil && sum == source && mode&0o111 != 0
	h.link, _ = os.Readlink(h.Link)
	h.settings, _ = os.ReadFile(h.Settings) // what cannot be read is written
	// Without its settings a process of it ends.
	h.there = there(h.Link, h.Settings, h.Program, h.Dir)
	return h
}

// hookPlugin plans what is in the runtime's directory of plugins of its hook. The link comes last, and goes first.
func (p *planner) hookPlugin() {
	h := p.o.hook
	if !p.c.preinstalls() || p.uninstalling {
		for _, path := range h.there {
			p.remove(path)
		}
		return
	}
	settings, err := p.c.hookSettings()
	if err != nil {
		return // the entry is blocked for it
	}
	before := len(p.actions)
	if !bytes.Equal(h.settings, settings) {
		p.do(action{Op: opRecord, Path: h.Settings, New: settings, Cause: causeHookPlugin})
	}
	switch {
	case h.current:
	case p.o.sourceErr != nil:
		p.note("the plugin in %s stays as it is: %v", p.c.HookDir, p.o.sourceErr)
	default:
		p.do(action{Op: opBinary, From: p.c.source(), Path: h.Program, Cause: causeHookPlugin})
	}
	if h.link != h.Target {
		link := action{Op: opLink, From: h.Target, Path: h.Link, Cause: causeHookPlugin}
		for _, a := range p.actions[before:] {
			link.Needs = append(link.Needs, a.Path)
		}
		p.do(link)
	}
}

// planHook plans for a node that is to have nothing else of ours.
func planHook(c Config, o observed) Plan {
	p, err := newPlanner(c, o)
	if err != nil {
		p.block(codeBadEntry, err)
		return p.Plan
	}
	p.hookPlugin()
	return p.Plan
}

// hookSettings are the entry and what the plugin does, as it reads them. Alone there are no credentials: it asks the agent.
func (c Config) hookSettings() ([]byte, error) {
	entry, err := c.Entry()
	if err == nil && c.Alone {
		var e netconf.Config
		if e, _, err = netconf.Parse(entry, c.Identity); err == nil {
			e.Agent = netconf.AgentRequire
			entry, err = json.Marshal(e)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the settings in %s: %w", filepath.Base(c.HookDir), err)
	}
	return json.Marshal(hookfile.Settings{Gate: c.Preinstall == "gate", Entry: entry})
}
