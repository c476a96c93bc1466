//go:build linux

package installer

import (
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/installer/internal/diskfile"
)

// link says which actions need which: the list, that what it names is there; and each step of a file, the one before.
func (p *planner) link() {
	var there []string           // what the list names, and is not there yet
	steps := map[string]string{} // the last step of each file
	var confs []string
	for i := range p.Actions {
		a := &p.Actions[i]
		switch {
		case a.Op == OpBinary && a.Cause == "binary-missing", a.Op == OpKubeconfig && a.Cause == "kubeconfig-missing":
			there = append(there, a.Path)
		case a.Op == OpRemoveOther:
			a.Needs = confs
		case a.conf():
			stem := ""
			if p.want == Absent { // each file by itself
				stem = stemOf(filepath.Base(a.Path))
			}
			a.Needs = slices.Clone(there)
			if last, ok := steps[stem]; ok {
				a.Needs = append(a.Needs, last)
			}
			steps[stem] = a.Path
			confs = append(confs, a.Path)
		}
	}
}

// stemOf is what the names of a file have in common, whatever it is called for now.
func stemOf(name string) string {
	for _, ext := range []string{".conf", ".json"} {
		if i := strings.Index(name, ext); i >= 0 {
			return name[:i]
		}
	}
	return name
}

// performer carries out plans of one look at the node, one after the other. What has failed is not tried again, so that the
// rest can be done as often as somebody else writes at the same time.
type performer struct {
	failed map[string]failure // by path
}

type failure struct {
	op  Op
	err error
}

// perform does the actions in order and gives those that it did. One that fails holds up only those that need it. changed
// is why the plan must be made anew: somebody else has written.
func (p *performer) perform(actions []Action, log *slog.Logger) (done []Action, changed error) {
	if p.failed == nil {
		p.failed = map[string]failure{}
	}
	missing := map[string]bool{}
	for _, a := range actions {
		if _, again := p.failed[a.Path]; again || slices.ContainsFunc(a.Needs, func(path string) bool { return missing[path] }) {
			missing[a.Path] = true
			continue
		}
		err := a.do()
		switch {
		case err == nil:
			log.Info("done", "action", string(a.Op), "path", a.Path, "cause", a.Cause)
			done = append(done, a)
			continue
		case errors.Is(err, diskfile.ErrChanged):
			changed = err
		default:
			p.failed[a.Path] = failure{a.Op, err}
		}
		missing[a.Path] = true
	}
	return done, changed
}

// reasons are the failures in the order of their paths. A temporary file that stays is none, since nothing needs its place.
func (p *performer) reasons() (blocked []*Blocked) {
	for _, path := range sortedKeys(p.failed) {
		if f := p.failed[path]; f.op != OpRemoveTemp {
			blocked = append(blocked, &Blocked{"write-failed", f.err})
		}
	}
	return blocked
}

// notes are the failures that are no reasons.
func (p *performer) notes() (notes []string) {
	for _, path := range sortedKeys(p.failed) {
		if f := p.failed[path]; f.op == OpRemoveTemp {
			notes = append(notes, "a temporary file of a killed run stays: "+f.err.Error())
		}
	}
	return notes
}
