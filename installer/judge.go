//go:build linux

package installer

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/status"
)

// verdict is a plan with only those actions that are to be done now.
type verdict struct {
	Plan

	wait time.Duration // before the network's configuration is changed; 0: it may be
}

// judge decides what of a plan is to be done now, in the light of what the agent remembers. A loss of the entry counts only where it is fresh.
// SwitchAuto may make another plan of it.
func (m *memory) judge(c Config, seen observed, plan Plan, fresh bool) verdict {
	v := verdict{Plan: plan}
	v.Blocked = append(v.Blocked, plan.unwhole...)
	v.wait = m.doubtful(v.Plan)
	if i := slices.IndexFunc(v.actions, action.conf); i >= 0 && v.wait == 0 && fresh {
		switch change := v.actions[i]; {
		case m.held[v.Target] && slices.Contains(losses, change.Cause):
			m.contested(c, seen, &v, change)
		case change.Cause == causeFirstInstall && v.Target != "":
			m.goneWhileAway(c, seen, &v)
		}
	}
	switch {
	case v.wait == 0:
		return v
	case len(v.left) > 0:
		v.Blocked = append(v.Blocked, &BlockedError{codeNotWhole, fmt.Errorf("the plugin of %s has been removed; if it stays so, the list goes too", filepath.Join(c.CNIConfDir, v.left[0]))})
	case v.noNetwork():
		v.Blocked = nil // not yet
	}
	v.actions = slices.DeleteFunc(v.actions, action.conf)
	return v
}

// doubt is a choice that may be wrong, since an owner may just be writing.
type doubt struct {
	choice string
	since  time.Time
}

// doubtful returns how long to wait before choosing a file that is only chosen because an earlier one is invalid, and before believing that a
// network, or a plugin, is gone. Each choice is delayed once, and anew when what is there changes.
func (m *memory) doubtful(plan Plan) time.Duration {
	choice, settle := plan.Target, m.settle
	switch {
	case m.target != "" && plan.noNetwork():
		choice = string(codeNoNetwork)
	case plan.Target == "" || !slices.ContainsFunc(plan.actions, action.conf),
		len(plan.left) == 0 && len(plan.Skipped) == 0 && (m.target == "" || plan.Target <= m.target):
		m.doubt = doubt{}
		return 0
	case len(plan.left) > 0: // an update may be replacing the program
		choice, settle = choice+"\n"+plan.left[0], 10*settle
	}
	for _, s := range plan.Skipped {
		choice += "\n" + s.Name + ": " + s.Err.Error()
	}
	if m.doubt.choice != choice {
		m.doubt = doubt{choice, m.now()}
	}
	return max(0, settle-m.now().Sub(m.doubt.since))
}

// losses are the causes for which somebody else has removed or changed the entry.
var losses = []cause{causeEntryRemoved, causeEntryChanged, causeOwnFileMissing, causeConfAppeared}

// contested decides whether to put back an entry that was removed. If not, it says why, and how long to wait. It may take a file
// of our own instead.
func (m *memory) contested(c Config, seen observed, v *verdict, change action) {
	now := m.now()
	_, renamed := seen.conf.files[v.Target+ciliumSuffix]
	renamed = renamed && change.Old == nil
	report := func(losses int, over time.Duration) string {
		return culprit(v.Target, v.Target == c.ownName(), renamed, m.wrote, change.Old, losses, over)
	}
	why, enough := report(m.past.Losses+1, 0), false
	if (change.Cause == causeEntryRemoved || change.Cause == causeConfAppeared) && !bytes.Equal(change.Old, m.wrote) {
		enough = m.lost()
	}
	retry, begins := m.conflict.lost(now, renamed, report)
	if begins {
		why = m.conflict.report
	}
	took := (enough || begins) && !m.hooked() && m.take(c, seen, v, why)
	if took || begins {
		m.fights()
	}
	if took {
		return
	}
	if begins {
		m.log.Error("a conflicting writer keeps removing our entry: backing off", "detail", m.conflict.report, "pause", m.conflict.pause.String())
	}
	if n := len(m.conflict.losses); retry && n > 1 {
		m.log.Warn("our entry was removed again", "detail", report(n, now.Sub(m.conflict.losses[0])))
	}
	if !retry {
		v.Blocked = append(v.Blocked, &BlockedError{codeConflict, errors.New(m.conflict.report)})
		v.wait = max(time.Millisecond, m.conflict.until.Sub(now))
	}
}

// goneWhileAway is the loss of an entry that was there when an agent last looked, and that this one does not find before it has seen the node in
// order once.
func (m *memory) goneWhileAway(c Config, seen observed, v *verdict) {
	if m.weighed || m.past.File == "" || m.taken {
		return
	}
	m.weighed = true
	if m.lost() {
		m.take(c, seen, v, fmt.Sprintf("%s: our entry was gone when the agent began (losses: %d; at a boot: %t), and pods that started before it was back bypassed the mesh",
			v.Target, m.past.Losses, m.rebooted))
	}
}

const (
	// enoughLosses is the number of removals by another program, however far apart, from which on SwitchAuto takes a list of its own.
	enoughLosses = 2
	// booting bounds the age of an agent at which a removal, after a boot, still counts as one of that boot.
	booting = 10 * time.Minute
)

// lost counts a loss of the entry from a file of the network, and reports whether there have been enough for SwitchAuto: two, or one at a boot.
func (m *memory) lost() bool {
	m.past.Losses++
	return m.past.Losses >= enoughLosses || m.rebooted && m.now().Sub(m.begun) < booting
}

// take makes the agent keep a file of its own from now on, if that is left to it and can be done. The conflict is then over.
func (m *memory) take(c Config, seen observed, v *verdict, why string) bool {
	if c.OwnFile != SwitchAuto || v.Target == c.ownName() {
		return false
	}
	seen.taken = true
	own := planInstall(c, seen)
	if own.Target != "" && own.Target != c.ownName() {
		m.log.Warn("our entry is put back each time: own-file=auto keeps no list of its own beside a plugin that delegates to the cluster's network", "detail", why)
		return false
	}
	if len(own.Blocked) > 0 {
		m.log.Error("our entry does not stay in the network's file, and own-file=auto cannot end it", "detail", why, "error", join(own.Blocked))
		return false
	}
	text := fmt.Sprintf("%s; so the agent keeps a list of its own from now on, %s (own-file=auto)", why, c.ownName())
	m.log.Warn("our entry does not stay in the network's file: taking a file of our own", "detail", text)
	m.taken, m.ownFile = true, status.News{Kind: status.KindNotice, Code: news.OwnFileTaken, Text: text, Since: m.now()}
	m.conflict.end()
	own.Blocked = own.unwhole
	v.Plan = own
	return true
}

// staying returns how long an entry that is in place must stay before the node counts as ready, and why; 0: no longer.
func (m *memory) staying(seen observed, plan Plan) (time.Duration, *BlockedError) {
	now := m.now()
	if wait := m.conflict.kept(now); wait > 0 {
		return wait, &BlockedError{codeConflict, errors.New(m.conflict.report)}
	}
	// What Cilium renames within that time would have been the entry that pods were sent to this node for.
	if left := m.conflict.window - now.Sub(m.putBack); left > 0 && plan.Target != "" && seen.conf.besideCilium() {
		return left, &BlockedError{codeStarting, fmt.Errorf("%s has our entry only since now, and Cilium has renamed files of that directory: it is to stay for %s first", plan.Target, m.conflict.window)}
	}
	return 0, nil
}
