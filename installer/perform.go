//go:build linux

package installer

import (
	"errors"
	"log/slog"
	"maps"
	"slices"

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// performer carries out successive plans. It does not repeat an action that failed, for example after a lost race.
type performer struct {
	failed map[string]failure // by path
}

type failure struct {
	op  op
	err error
}

// perform does the actions in order and returns those that succeeded. A failed action holds up only those that need it.
// changed is set when another process has changed a file, so that a new plan is needed.
func (p *performer) perform(actions []action, log *slog.Logger) (done []action, changed error) {
	undone := map[string]bool{}
	for _, a := range actions {
		if _, again := p.failed[a.Path]; again || slices.ContainsFunc(a.Needs, func(path string) bool { return undone[path] }) {
			undone[a.Path] = true
			continue
		}
		err := a.do()
		switch {
		case err == nil:
			log.Info("done", "action", string(a.Op), "path", a.Path, "cause", string(a.Cause))
			done = append(done, a)
			continue
		case errors.Is(err, diskfile.ErrChanged):
			changed = err
		default:
			if p.failed == nil {
				p.failed = map[string]failure{}
			}
			p.failed[a.Path] = failure{a.Op, err}
		}
		undone[a.Path] = true
	}
	return done, changed
}

// failures returns what failed, by path. A temporary file that stays blocks nothing, so it is only a note.
func (p *performer) failures() (blocked []*BlockedError, notes []string) {
	for _, path := range slices.Sorted(maps.Keys(p.failed)) {
		if f := p.failed[path]; f.op == opRemoveTemp {
			notes = append(notes, "a temporary file of a killed process stays: "+f.err.Error())
		} else {
			blocked = append(blocked, &BlockedError{codeWriteFailed, f.err})
		}
	}
	return blocked, notes
}
