//go:build linux

package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/meshcni/meshcni/conflist"
)

// reconcile looks and acts until there is nothing left to do now. It gives the time after which to look again though
// nothing changes; 0 when there is no need.
func (a *Agent) reconcile(ctx context.Context) time.Duration {
	a.reload()
	c := a.Config()
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil { // it may have been emptied
		a.failed("run-dir", explain(err, c.RunDir))
	}
	switch act, err := a.lease.keep(); {
	case err != nil:
		a.failed("lease", err)
	case !act:
		a.report(Steps{}, []*Blocked{{"superseded", errors.New("another agent has begun on this node since, and keeps the plugin installed")}})
		return 0
	}
	if err := a.sock.ensure(); err != nil {
		a.failed("log-socket", err)
	}
	if _, err := os.Lstat(marker(c)); err == nil {
		return a.rest(ctx, c)
	}
	a.rested = false
	judged := false // whether this loss has been judged; losing a race for the file is not another one
	var doing performer
	for range rounds {
		seen := a.obs.look(c, false)
		steps := Plan(c, Installed, seen)
		a.token(seen)
		wait := a.doubtful(steps, seen)
		blocked := steps.Blocked
		if wait == 0 && !judged {
			var fight *Blocked
			if fight, wait = a.contested(steps); fight != nil {
				blocked = append(blocked, fight)
			}
			judged = true
		}
		if wait > 0 { // everything but the network list
			steps.Actions = slices.DeleteFunc(steps.Actions, Action.conf)
		}
		done, changed := doing.perform(steps.Actions, a.log)
		a.count(done)
		if changed != nil {
			continue
		}
		if len(done) > 0 && wait == 0 {
			judged = false
			continue // and see that it holds
		}
		failed := doing.reasons()
		retry := a.backOff(doing)
		blocked = append(failed, blocked...)
		if wait > 0 {
			if len(blocked) > 0 {
				a.report(steps, blocked)
			}
			return soonest(wait, retry)
		}
		if !slices.ContainsFunc(steps.Actions, Action.conf) {
			a.settled(c, seen, steps)
		}
		peace := a.fight.kept(a.now())
		if len(blocked) == 0 && peace > 0 {
			blocked = append(blocked, &Blocked{"fight", errors.New(a.fight.report)})
		}
		if exp := seen.Credentials.Expires; !exp.IsZero() && a.now().After(exp) {
			blocked = append(blocked, &Blocked{"token-expired", fmt.Errorf("the service account token expired at %s: is the kubelet projecting it?", exp.Format(time.RFC3339))})
		}
		a.report(steps, blocked)
		return soonest(peace, retry)
	}
	return 10 * time.Millisecond
}

// backOff counts what has failed, and gives when to try it again; 0 when nothing has.
func (a *Agent) backOff(doing performer) time.Duration {
	if len(doing.failed) == 0 {
		a.failedFor = 0
		return 0
	}
	for _, path := range sortedKeys(doing.failed) {
		a.failed(string(doing.failed[path].op), doing.failed[path].err)
	}
	a.failedFor = min(max(2*a.failedFor, time.Second), 30*time.Second)
	return a.failedFor
}

// soonest is the shorter of two waits, of which 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// rest takes everything back once, for the uninstall that has left its mark, and then stays away. What it could not take
// back is tried again, ever more slowly.
func (a *Agent) rest(ctx context.Context, c Config) time.Duration {
	blocked := []*Blocked{{"uninstalled", fmt.Errorf("meshcni-node uninstall has run; remove %s to install again", marker(c))}}
	if !a.rested {
		steps, err := uninstall(ctx, c, a.log)
		if err != nil {
			a.failed("uninstall", err)
			a.report(Steps{}, append(blocked, steps.Blocked...))
			a.failedFor = min(max(2*a.failedFor, time.Second), 30*time.Second)
			return a.failedFor
		}
		a.rested = true
	}
	a.report(Steps{}, blocked)
	return 0
}

// doubtful gives how long to wait before a file is chosen that would not have been, had an earlier one been loadable: its
// owner may just be writing. A choice is waited out once, and anew when what is there changes.
func (a *Agent) doubtful(steps Steps, seen Observed) time.Duration {
	if steps.Target == "" || !slices.ContainsFunc(steps.Actions, Action.conf) {
		a.doubt = ""
		return 0
	}
	last := a.lastTarget()
	if len(steps.Passed) == 0 && (last == "" || last == steps.Target || steps.Target < last) {
		return 0
	}
	doubt := steps.Target
	for _, s := range steps.Passed {
		doubt += "\n" + s.Name + ": " + s.Err.Error()
	}
	if doubt != a.doubt {
		a.doubt, a.doubtSince = doubt, a.now()
	}
	return max(0, a.opts.Settle-a.now().Sub(a.doubtSince))
}

// contested decides whether to put the entry back where it was removed; else it says why not, and for how long.
func (a *Agent) contested(steps Steps) (*Blocked, time.Duration) {
	if !a.held[steps.Target] {
		return nil, 0
	}
	i := slices.IndexFunc(steps.Actions, Action.conf)
	if i < 0 || !lossCauses[steps.Actions[i].Cause] {
		return nil, 0
	}
	found := steps.Actions[i].Old
	now := a.now()
	retry, begins := a.fight.lost(now, func(losses int, over time.Duration) string {
		return culprit(steps.Target, a.wrote, found, losses, over)
	})
	if begins {
		a.m.fights.Inc()
		a.log.Error("somebody keeps removing our entry: backing off", "detail", a.fight.report, "pause", a.fight.pause)
	}
	if retry {
		return nil, 0
	}
	return &Blocked{"fight", errors.New(a.fight.report)}, max(time.Millisecond, a.fight.until.Sub(now))
}

var lossCauses = map[string]bool{"entry-removed": true, "entry-changed": true, "own-file-missing": true, "conf-appeared": true}

// settled remembers a node on which there was nothing left to do.
func (a *Agent) settled(c Config, seen Observed, steps Steps) {
	if steps.Target == "" {
		return
	}
	if !a.held[steps.Target] {
		a.held[steps.Target] = true
		a.log.Info("installed", "file", filepath.Join(c.CNIConfDir, steps.Target), "network", steps.Network)
	}
	if snap, ok := seen.Net.(*Snapshot); ok {
		if data := snap.files[steps.Target].data; !bytes.Equal(data, a.wrote) {
			a.wrote = data
		}
	}
}

func (a *Agent) lastTarget() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.target
}

func (a *Agent) count(done []Action) {
	for _, act := range done {
		switch {
		case act.conf() && !a.held[filepath.Base(act.Path)] && lossCauses[act.Cause]:
			if act.Op != OpMoveAside {
				a.m.installs.Inc()
			}
		case act.Op == OpRemoveTemp:
		case a.lastTarget() != "": // it had been in order
			a.m.repairs.WithLabelValues(act.Cause).Inc()
		}
	}
}

func (a *Agent) token(seen Observed) {
	if seen.CredentialsErr != nil {
		return
	}
	cred := seen.Credentials
	since := cred.Issued
	if since.IsZero() {
		if info, err := os.Stat(a.Config().kubeconfig()); err == nil {
			since = info.ModTime()
		} else {
			since = a.now()
		}
	}
	a.m.tokenAge.Set(a.now().Sub(since).Seconds())
	if !cred.Expires.IsZero() {
		a.m.tokenExpires.Set(float64(cred.Expires.Unix()))
	}
}

func (a *Agent) failed(action string, err error) {
	a.m.failures.WithLabelValues(action).Inc()
	a.log.Error("a step failed; it will be tried again", "action", action, "error", err)
}

// report publishes how the node is, and logs it when that is news.
func (a *Agent) report(steps Steps, blocked []*Blocked) {
	a.mu.Lock()
	was, wasTarget := reasons(a.blocked), a.target
	a.blocked = blocked
	if len(blocked) == 0 {
		a.target = steps.Target
	}
	a.m.setBlocked(blocked) // who has seen the one must find the other
	a.mu.Unlock()
	switch is := reasons(blocked); {
	case is == nil && (was != nil || wasTarget != steps.Target):
		for _, n := range steps.Notes {
			a.log.Warn(n)
		}
		a.log.Info("ready", "file", steps.Target, "network", steps.Network)
	case is != nil && (was == nil || was.Error() != is.Error()):
		for _, b := range blocked {
			a.notReady(b)
		}
	}
}

func (a *Agent) notReady(b *Blocked) {
	a.log.Warn("not ready", "code", b.Code, "reason", b.Err.Error())
	var none *conflist.NoNetworkError
	if errors.As(b.Err, &none) {
		for _, s := range none.Skipped {
			a.log.Warn("passed over", "file", s.Name, "reason", s.Err.Error())
		}
	}
}
