//go:build linux

package installer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// history remembers across boots what became of the entry. A copy is in each directory of the runtime that the agent writes to, because
// some nodes have one of these in memory.
type history struct {
	// Boot identifies the boot during which an agent last saw the entry in place; File had it.
	Boot string `json:"boot,omitempty"`
	File string `json:"file,omitempty"`
	// Whole is File when all that it names was last there.
	Whole string `json:"whole,omitempty"`
	// Losses counts how often another program has removed the entry from a file of the network.
	Losses int `json:"losses,omitempty"`
	// Taken says that OwnFileAuto keeps a list of our own.
	Taken bool `json:"taken,omitempty"`
	// OwnLosses counts how often our own file was removed. Since the second time the file that it is derived from has the entry too.
	OwnLosses int `json:"own_losses,omitempty"`
	// Since is the time at which the entry was last put back. Zero: it has been in place since it was first installed.
	Since time.Time `json:"since,omitzero"`
	// Installed dates the entry's first installation.
	Installed time.Time `json:"installed,omitzero"`
}

// historyPaths returns the places of the history. No runtime takes a file of that name for a configuration or a plugin.
func (c Config) historyPaths() []string {
	name := "." + c.ownType() + "-history"
	var paths []string
	for _, dir := range append(slices.Clone(c.CNIBinDirs), c.CNIConfDir) {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// recall reads the newest copy of the history; zero if there is none.
func recall(c Config) (newest history) {
	for _, path := range c.historyPaths() {
		var h history
		if data, err := os.ReadFile(path); err != nil || json.Unmarshal(data, &h) != nil {
			continue
		}
		taken, losses, ownLosses, installed := newest.Taken || h.Taken, max(newest.Losses, h.Losses), max(newest.OwnLosses, h.OwnLosses), newest.Installed
		if installed.IsZero() || !h.Installed.IsZero() && h.Installed.Before(installed) {
			installed = h.Installed
		}
		if newest.File == "" || h.Since.After(newest.Since) {
			newest = h
		}
		newest.Taken, newest.Losses, newest.OwnLosses, newest.Installed = taken, losses, ownLosses, installed
	}
	return newest
}

// keep writes the history to all of its places. It fails if there is none that takes it.
func (h history) keep(c Config) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	var errs []error
	paths := c.historyPaths()
	for _, path := range paths {
		if err := diskfile.Write(path, data, 0o600); err != nil {
			errs = append(errs, explain(err, path))
		}
	}
	if len(errs) < len(paths) {
		return nil
	}
	return errors.Join(errs...)
}

// bootID identifies the kernel's boot; empty if it cannot be told.
func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}

// remembers makes the agent know its node's history once it acts.
func (a *Agent) remembers(c Config) {
	if !a.recalled {
		a.past, a.recalled, a.weighed = recall(c), true, false
		_, err := os.Lstat(c.kubeconfig())
		inMemory := errors.Is(err, fs.ErrNotExist)
		a.rebooted = a.past.File != "" && (a.past.Boot != a.boot() || inMemory) // the run directory is in memory
		a.taken, a.begun = a.past.Taken, a.now()
		a.publishSince()
	}
	a.taken = a.taken && c.OwnFile == OwnFileAuto
}

// goneWhileAway decides what to make of an entry that was there when an agent last looked, and that this one does not find before it has
// seen the node in order once: a file of our own is taken if the node has booted since, or if it is not the first time.
func (a *Agent) goneWhileAway(c Config, seen observed, plan Plan) {
	i := slices.IndexFunc(plan.actions, action.conf)
	if a.weighed || i < 0 || plan.Target == "" || a.past.File == "" || a.taken || plan.actions[i].Cause != causeFirstInstall {
		return
	}
	a.weighed = true
	a.past.Losses++
	switch {
	case a.rebooted:
		a.take(c, seen, plan, fmt.Sprintf("%s: our entry was gone when the node had booted, and pods that started before it was back bypassed the mesh", plan.Target))
	case a.past.Losses >= enoughLosses:
		a.take(c, seen, plan, fmt.Sprintf("%s: our entry was gone when the agent began, and had been removed before", plan.Target))
	}
}

// enoughLosses is the number of removals by another program, however far apart, from which on OwnFileAuto takes a file of its own.
const enoughLosses = 2

// both reports whether the file that our own is derived from has the entry too.
func (h history) both() bool { return h.OwnLosses >= enoughLosses }

// besideEvery is the least time between two times that the entry is put there: the file's owner may answer each with a rewrite.
const besideEvery = time.Second

// booting bounds the age of an agent at which a removal, after a boot, still counts as one of that boot.
const booting = 10 * time.Minute

// forgetTaken makes OwnFileAuto begin anew when it is next chosen.
func forgetTaken(c Config) error {
	h := recall(c)
	if c.OwnFile == OwnFileAuto || !h.Taken {
		return nil
	}
	h.Taken, h.Losses = false, 0
	return h.keep(c)
}

// note keeps what has become of the entry, now that it is in place.
func (a *Agent) note(c Config, plan Plan) {
	now := a.past
	now.Boot, now.File, now.Taken = a.boot(), plan.Target, a.taken
	if len(plan.unwhole) == 0 {
		now.Whole = plan.Target
	}
	if a.putBack && a.past.File != "" {
		now.Since = a.now().UTC().Truncate(time.Millisecond)
	}
	a.putBack = false
	if now.Installed.IsZero() {
		now.Installed = a.now().UTC().Truncate(time.Millisecond)
	}
	if now == a.kept {
		return
	}
	a.past = now
	a.publishSince()
	if err := now.keep(c); err != nil {
		a.failed("history", err)
		return
	}
	a.kept = now
}

func (a *Agent) publishSince() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since, a.installed = a.past.Since, a.past.Installed
}
