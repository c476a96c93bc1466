//go:build linux

package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/installer/internal/diskfile"
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
		a.report(Steps{}, &Blocked{"superseded", errors.New("another agent has begun on this node since, and keeps the plugin installed")})
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
	for range rounds {
		seen := a.obs.look(c, false)
		steps := Plan(c, Installed, seen)
		a.token(seen)
		wait := a.doubtful(steps, seen)
		blocked := steps.Blocked
		if wait == 0 && !judged {
			blocked, wait = a.contested(steps, blocked)
			judged = true
		}
		if wait > 0 { // everything but the network list
			steps.Actions = slices.DeleteFunc(steps.Actions, Action.conf)
		}
		switch done, err := perform(steps.Actions, a.log); {
		case errors.Is(err, diskfile.ErrChanged):
			a.count(steps.Actions[:done])
			continue
		case err != nil:
			a.count(steps.Actions[:done])
			a.failed(string(steps.Actions[done].Op), err)
			a.report(steps, &Blocked{"write-failed", err})
			a.failedFor = min(max(2*a.failedFor, time.Second), 30*time.Second)
			return a.failedFor
		}
		a.failedFor = 0
		a.count(steps.Actions)
		if wait > 0 {
			if blocked != nil {
				a.report(steps, blocked)
			}
			return wait
		}
		if len(steps.Actions) > 0 {
			judged = false
			continue // and see that it holds
		}
		a.settled(c, seen, steps)
		wait = a.fight.kept(a.now())
		if blocked == nil && wait > 0 {
			blocked = &Blocked{"fight", errors.New(a.fight.report)}
		}
		if exp := seen.Credentials.Expires; blocked == nil && !exp.IsZero() && a.now().After(exp) {
			blocked = &Blocked{"token-expired", fmt.Errorf("the service account token expired at %s: is the kubelet projecting it?", exp.Format(time.RFC3339))}
		}
		a.report(steps, blocked)
		return wait
	}
	return 10 * time.Millisecond
}

// rest takes everything back once, for the uninstall that has left its mark, and then stays away.
func (a *Agent) rest(ctx context.Context, c Config) time.Duration {
	if !a.rested {
		if _, err := uninstall(ctx, c, a.log); err != nil {
			a.failed("uninstall", err)
			return time.Second
		}
		a.rested = true
	}
	a.report(Steps{}, &Blocked{"uninstalled", fmt.Errorf("meshcni-node uninstall has run; remove %s to install again", marker(c))})
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

// contested decides whether to put the entry back where it was removed.
func (a *Agent) contested(steps Steps, blocked *Blocked) (*Blocked, time.Duration) {
	if !a.held[steps.Target] {
		return blocked, 0
	}
	i := slices.IndexFunc(steps.Actions, Action.conf)
	if i < 0 || !lossCauses[steps.Actions[i].Cause] {
		return blocked, 0
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
		return blocked, 0
	}
	return &Blocked{"fight", errors.New(a.fight.report)}, max(time.Millisecond, a.fight.until.Sub(now))
}

var lossCauses = map[string]bool{"entry-removed": true, "entry-changed": true, "own-file-missing": true, "conf-appeared": true}

// settled remembers a node on which there was nothing left to do.
func (a *Agent) settled(c Config, seen Observed, steps Steps) {
	if steps.Target == "" || steps.Blocked != nil {
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
func (a *Agent) report(steps Steps, blocked *Blocked) {
	a.mu.Lock()
	was, wasTarget := a.blocked, a.target
	a.blocked = blocked
	if blocked == nil {
		a.target = steps.Target
	}
	a.mu.Unlock()
	switch {
	case blocked == nil && (was != nil || wasTarget != steps.Target):
		for _, n := range steps.Notes {
			a.log.Warn(n)
		}
		a.log.Info("ready", "file", steps.Target, "network", steps.Network)
	case blocked != nil && (was == nil || was.Error() != blocked.Error()):
		a.log.Warn("not ready", "code", blocked.Code, "reason", blocked.Err.Error())
		var none *conflist.NoNetworkError
		if errors.As(blocked.Err, &none) {
			for _, s := range none.Skipped {
				a.log.Warn("passed over", "file", s.Name, "reason", s.Err.Error())
			}
		}
	}
	a.m.setBlocked(blocked)
}
