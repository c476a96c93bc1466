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

// history remembers across boots what became of the entry. It is beside the plugin, since some nodes have /etc in memory.
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
	// Since is the time at which the entry was last put back. Zero: it has been in place since it was first installed.
	Since time.Time `json:"since,omitzero"`
	// Installed dates the entry's first installation.
	Installed time.Time `json:"installed,omitzero"`
}

// historyPath is in the first directory of plugins. No runtime takes a file of that name for a plugin.
func (c Config) historyPath() string { return filepath.Join(c.CNIBinDirs[0], c.historyName()) }

func (c Config) historyName() string { return "." + c.ownType() + "-history" }

// recall reads the history; zero if there is none.
func recall(c Config) (h history) {
	data, err := os.ReadFile(c.historyPath())
	if err != nil || json.Unmarshal(data, &h) != nil {
		return history{}
	}
	return h
}

func (h history) keep(c Config) error {
	data, err := json.Marshal(h)
	if err == nil {
		err = explain(diskfile.Write(c.historyPath(), data, 0o600), c.historyPath())
	}
	return err
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
		inMemory := c.KubeconfigName != "" && errors.Is(err, fs.ErrNotExist)
		a.rebooted = a.past.File != "" && (a.past.Boot != a.boot() || inMemory) // the run directory is in memory
		a.taken, a.begun = a.past.Taken, a.now()
		a.publishSince()
	}
	a.taken = a.taken && c.OwnFile == OwnFileAuto
}

// goneWhileAway is the loss of an entry that was there when an agent last looked, and that this one does not find before it has seen the node in
// order once.
func (a *Agent) goneWhileAway(c Config, seen observed, plan Plan) {
	i := slices.IndexFunc(plan.actions, action.conf)
	if a.weighed || i < 0 || plan.Target == "" || a.past.File == "" || a.taken || plan.actions[i].Cause != causeFirstInstall {
		return
	}
	a.weighed = true
	if a.lost() {
		a.take(c, seen, plan, fmt.Sprintf("%s: our entry was gone when the agent began (losses: %d; at a boot: %t), and pods that started before it was back bypassed the mesh",
			plan.Target, a.past.Losses, a.rebooted))
	}
}

// enoughLosses is the number of removals by another program, however far apart, from which on OwnFileAuto takes a list of its own.
const enoughLosses = 2

// booting bounds the age of an agent at which a removal, after a boot, still counts as one of that boot.
const booting = 10 * time.Minute

// lost counts a loss of the entry from a file of the network, and reports whether there have been enough for OwnFileAuto: two, or one at a boot.
func (a *Agent) lost() bool {
	a.past.Losses++
	return a.past.Losses >= enoughLosses || a.rebooted && a.now().Sub(a.begun) < booting
}

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
