//go:build linux

package installer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/status"
)

// memory outlives a turn of the loop, which judges plans by it.
type memory struct {
	held       map[string]bool
	taken      bool
	past, kept history   // kept is past as it is on the disk
	recalled   bool      // past has been read since this agent acts
	rebooted   bool      // since past was written
	weighed    bool      // what is missing has been judged in the light of past
	begun      time.Time // to act
	target     string    // the last one in order
	wrote      []byte    // it, when it last had our entry
	putBack    time.Time // when the entry was last put where it had not been
	undated    bool      // putBack is not in past yet
	ownFile    status.News
	doubt      doubt
	conflict   conflict

	log    *slog.Logger
	now    func() time.Time
	boot   func() string
	hooked func() bool
	settle time.Duration
	fights func() // counts a conflict
}

// remembered is the part of the memory that plans read.
type remembered struct {
	// held are the files that have had the entry since this process began.
	held map[string]bool
	// taken: a file of our own is kept by SwitchAuto.
	taken bool
	// whole is the target when all that it names was last there.
	whole string
}

func (m *memory) remembered() remembered { return remembered{m.held, m.taken, m.past.Whole} }

func newMemory(a *Agent) memory {
	return memory{
		held: map[string]bool{}, conflict: conflict{contest: a.contest},
		log: a.log, now: a.now, boot: a.boot, hooked: a.opts.Hooked, settle: a.opts.Settle,
		fights: a.m.conflicts.Inc,
	}
}

// history remembers across boots what became of the entry. It is beside the plugin, since some nodes have /etc in memory.
type history struct {
	// Boot identifies the boot during which an agent last saw the entry in place; File had it.
	Boot string `json:"boot,omitempty"`
	File string `json:"file,omitempty"`
	// Whole is File when all that it names was last there.
	Whole string `json:"whole,omitempty"`
	// Losses counts how often another program has removed the entry from a file of the network.
	Losses int `json:"losses,omitempty"`
	// Taken says that SwitchAuto keeps a list of our own.
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

// forgetTaken makes SwitchAuto begin anew when it is next chosen.
func forgetTaken(c Config) error {
	h := recall(c)
	if c.OwnFile == SwitchAuto || !h.Taken {
		return nil
	}
	h.Taken, h.Losses = false, 0
	return h.keep(c)
}

// bootID identifies the kernel's boot; empty if it cannot be told.
func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}

// recall reads the history once the agent acts.
func (m *memory) recall(c Config) {
	if !m.recalled {
		m.past, m.recalled, m.weighed, m.begun = recall(c), true, false, m.now()
		_, err := os.Lstat(c.kubeconfig())
		inMemory := c.KubeconfigName != "" && errors.Is(err, fs.ErrNotExist)
		m.rebooted = m.past.File != "" && (m.past.Boot != m.boot() || inMemory) // the run directory is in memory
		m.taken = m.past.Taken
	}
	m.taken = m.taken && c.OwnFile == SwitchAuto
}

// forget leaves what became of the entry to the files on the node.
func (m *memory) forget() {
	m.taken, m.recalled, m.ownFile = false, false, status.News{}
	m.past, m.kept = history{}, history{}
}

// did notes an action.
func (m *memory) did(act action) {
	switch act.Cause {
	case causeEntryElsewhere: // it is no loss that the file does not have it
		delete(m.held, filepath.Base(act.Path))
	case causeFirstInstall, causeEntryRemoved, causeOwnFileMissing, causeOwnFileTaken, causeConfAppeared:
		if act.conf() { // it brought back an entry that no file had, or that none had which the runtime loads
			m.putBack, m.undated = m.now(), true
		}
	}
}

// inPlace notes a node with the entry in place. Its error is that of the history, which is written if it has changed.
func (m *memory) inPlace(c Config, seen observed, plan Plan) error {
	if !m.held[plan.Target] {
		m.held[plan.Target] = true
		m.log.Info("installed", "file", filepath.Join(c.CNIConfDir, plan.Target), "network", plan.Network)
	}
	m.wrote, m.weighed = seen.conf.files[plan.Target].data, true
	m.taken = c.Chained && c.OwnFile == SwitchAuto && plan.Target == c.ownName()
	now, at := m.past, m.now().UTC().Truncate(time.Millisecond)
	now.Boot, now.File, now.Taken = m.boot(), plan.Target, m.taken
	if len(plan.unwhole) == 0 {
		now.Whole = plan.Target
	}
	if m.undated && m.past.File != "" {
		now.Since = at
	}
	m.undated = false
	if now.Installed.IsZero() {
		now.Installed = at
	}
	if now == m.kept {
		return nil
	}
	m.past = now
	if err := now.keep(c); err != nil {
		return err
	}
	m.kept = now
	return nil
}
