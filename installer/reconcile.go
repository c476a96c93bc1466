//go:build linux

package installer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/internal/node/news"
)

// reconcile looks and acts until nothing is left to do now. It returns after which time to look again even if nothing
// changes; 0 if there is no need.
func (a *Agent) reconcile(ctx context.Context) time.Duration {
	a.reload()
	c := a.present()
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil { // it may have been removed
		a.failed("run-dir", explain(err, c.RunDir))
	}
	if why := a.unable(c); len(why) > 0 {
		a.report(Plan{}, why)
		return takeOverLook
	}
	act, err := a.lease.keep()
	if err != nil {
		a.failed("lease", err)
	}
	if !act && !a.lease.claimed { // the older one may have taken the file for a killed agent's
		a.report(Plan{}, waiting(cmp.Or(err, errNoLease)))
		return takeOverLook
	}
	a.acts(act)
	if !act {
		a.forgetOwn()
		a.report(Plan{}, []*BlockedError{{codeSuperseded, errors.New("another agent has begun on this node since, and keeps the plugin installed")}})
		return 0
	}
	if err := a.sock.ensure(); err != nil {
		a.failed("log-socket", err)
	}
	if _, err := os.Lstat(marker(c)); err == nil {
		return a.rest(ctx, c)
	}
	if c.Alone {
		return a.takeBack(ctx, c)
	}
	a.rested = false
	a.remembers(c)
	judged := false // losing a race for the file is not another loss of the entry
	var doing performer
	for range rounds {
		seen := a.obs.look(c)
		seen.held, seen.taken, seen.whole = a.held, a.taken, a.past.Whole
		if seen.credentialsErr == nil {
			seen.credentials = a.tokens.choose(seen.credentials, seen.kubeconfig)
		}
		plan := planInstall(c, seen)
		plan.Blocked = append(plan.Blocked, plan.unwhole...)
		a.mu.Lock()
		a.binDirs = seen.binDirs
		a.mu.Unlock()
		a.token(seen)
		wait := a.doubtful(plan)
		if wait == 0 && !judged {
			judged = true
			if a.goneWhileAway(c, seen, plan); a.taken && !seen.taken {
				judged = false
				continue
			}
			var conflict *BlockedError
			conflict, wait = a.contested(c, seen, plan)
			if a.taken && !seen.taken {
				continue
			}
			if conflict != nil {
				plan.Blocked = append(plan.Blocked, conflict)
			}
		}
		if wait > 0 && len(plan.left) > 0 {
			plan.Blocked = append(plan.Blocked, &BlockedError{codeNotWhole, fmt.Errorf("the plugin of %s has been removed; if it stays so, the list goes too", filepath.Join(c.CNIConfDir, plan.left[0]))})
		} else if wait > 0 && plan.noNetwork() {
			plan.Blocked = nil // not yet
		}
		if wait > 0 { // everything but the network's configuration
			plan.actions = slices.DeleteFunc(plan.actions, action.conf)
		}
		done, changed := doing.perform(plan.actions, a.log)
		a.count(done)
		if slices.ContainsFunc(done, puts) {
			a.putBack, a.putAt = true, a.now()
		}
		if changed != nil {
			continue
		}
		if len(done) > 0 && wait == 0 {
			judged = false
			continue // and see that it holds
		}
		return a.conclude(c, seen, plan, doing, wait)
	}
	return 10 * time.Millisecond
}

// takeOverLook is the interval at which an agent that waits for its turn looks whether it could do its work.
const takeOverLook = 200 * time.Millisecond

// unable returns why this agent does not take the place of an older one that runs; nil: it may, or there is none. One that took it all
// the same would end what works: the older one is stopped as soon as it is not ready.
func (a *Agent) unable(c Config) []*BlockedError {
	if !a.lease.foreign() {
		return nil
	}
	if err := a.opts.TakeOver(); err != nil {
		return waiting(err)
	}
	if c.Alone {
		return nil
	}
	seen := a.obs.look(c)
	if seen.credentialsErr == nil {
		seen.credentials = a.tokens.choose(seen.credentials, seen.kubeconfig)
	}
	plan := planInstall(c, seen)
	if err := join(append(plan.Blocked, plan.unwhole...)); err != nil {
		return waiting(err)
	}
	return nil
}

// errNoLease: another agent took the lease at the same time.
var errNoLease = errors.New("another agent has the lease")

func waiting(why error) []*BlockedError {
	return []*BlockedError{{codeWaiting, fmt.Errorf("the agent that was on this node before keeps the plugin installed until this one can: %w", why)}}
}

// acts tells when the agent's turn begins, and when it ends.
func (a *Agent) acts(now bool) {
	if a.turn == nil || *a.turn != now {
		a.turn = &now
		a.opts.OnTurn(now, !now && a.lease.besides())
	}
}

// conclude reports a state in which nothing is left to do, or nothing but to wait.
func (a *Agent) conclude(c Config, seen observed, plan Plan, doing performer, wait time.Duration) time.Duration {
	failed, _ := doing.failures()
	retry := a.backOff(doing)
	blocked := append(failed, plan.Blocked...)
	if wait > 0 {
		if len(blocked) > 0 {
			a.report(plan, blocked)
		}
		return soonest(wait, retry)
	}
	if !slices.ContainsFunc(plan.actions, action.conf) {
		a.settled(c, seen, plan)
	}
	wait = a.conflict.kept(a.now())
	if len(blocked) == 0 && wait > 0 {
		blocked = append(blocked, &BlockedError{codeConflict, errors.New(a.conflict.report)})
	} else if left := a.conflict.window - a.now().Sub(a.putAt); len(blocked) == 0 && left > 0 && seen.conf.besideCilium() {
		wait = left // what it renames within that time would have been the entry that pods were sent to this node for
		blocked = append(blocked, &BlockedError{codeStarting, fmt.Errorf("%s has our entry only since now, and Cilium has renamed files of that directory: it is to stay for %s first", plan.Target, a.conflict.window)})
	}
	if exp := seen.credentials.expires; !exp.IsZero() && a.now().After(exp) {
		blocked = append(blocked, &BlockedError{codeTokenExpired, fmt.Errorf("the plugin's token expired at %s, and there is no newer one: does the API server answer, and is the node's clock right?", exp.Format(time.RFC3339))})
	}
	a.report(plan, blocked)
	return soonest(wait, retry)
}

// backOff counts and logs what has failed, and returns when to try it again; 0 if nothing has.
func (a *Agent) backOff(doing performer) time.Duration {
	for _, f := range doing.failed {
		a.failed(string(f.op), f.err)
	}
	if len(doing.failed) == 0 {
		a.failedFor = 0
		return 0
	}
	return a.longer()
}

// longer doubles the time between attempts, up to 30 s.
func (a *Agent) longer() time.Duration {
	a.failedFor = min(max(2*a.failedFor, time.Second), 30*time.Second)
	return a.failedFor
}

// soonest returns the shorter of two waits, of which 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// rest uninstalls once, because an uninstall has left its marker, and then does nothing. It retries what failed ever more
// slowly.
func (a *Agent) rest(ctx context.Context, c Config) time.Duration {
	a.forgetOwn()
	blocked := []*BlockedError{{codeUninstalled, fmt.Errorf("an uninstall has run; remove %s to install again", marker(c))}}
	if !a.rested {
		plan, err := uninstall(ctx, c, a.log)
		if err != nil {
			a.failed("uninstall", err)
			a.report(Plan{}, append(blocked, plan.Blocked...))
			return a.longer()
		}
		a.rested = true
	}
	a.report(Plan{}, blocked)
	return 0
}

// takeBack takes back, once, what an agent has put on the node, if nothing is to be there. It retries what failed ever more slowly.
func (a *Agent) takeBack(ctx context.Context, c Config) time.Duration {
	a.forgetOwn()
	if kept, err := settle(ctx, a.log, func() Plan { return planHook(c, a.obs.look(c)) }); err != nil {
		if ctx.Err() != nil {
			return 0
		}
		a.failed("hook-plugin", err)
		a.report(Plan{}, append(kept.Blocked, unknown(kept, err)...))
		return a.longer()
	}
	if a.rested {
		a.report(Plan{}, nil)
		return 0
	}
	if err := a.opts.TakeBack(); err != nil {
		a.report(Plan{}, nil) // what is there captures pods
		return takeOverLook
	}
	plan, err := settle(ctx, a.log, func() Plan {
		seen := a.obs.lookForTakeBack(c)
		seen.hook = hooked{} // which stays
		return planUninstall(c, seen)
	})
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		a.failed("take-back", err)
		a.report(Plan{}, append(plan.Blocked, unknown(plan, err)...))
		return a.longer()
	}
	a.failedFor = 0
	a.rested = len(plan.Notes) == 0 // else the program stays for pods that are still there
	a.report(Plan{}, nil)
	return 0
}

// unknown is an error of settle that the plan does not have.
func unknown(plan Plan, err error) []*BlockedError {
	if len(plan.Blocked) > 0 {
		return nil
	}
	return []*BlockedError{{codeWriteFailed, err}}
}

// doubtful returns how long to wait before choosing a file that is only chosen because an earlier one is invalid, and before believing that a network is gone: its owner may just be writing. Each choice is
// delayed once, and anew when what is there changes.
func (a *Agent) doubtful(plan Plan) time.Duration {
	var doubt string
	settle := a.opts.Settle
	switch last := a.lastTarget(); {
	case last != "" && plan.noNetwork():
		doubt = string(codeNoNetwork)
	case plan.Target == "" || !slices.ContainsFunc(plan.actions, action.conf),
		len(plan.left) == 0 && len(plan.Skipped) == 0 && (last == "" || plan.Target <= last):
		a.doubt = ""
		return 0
	default:
		doubt = plan.Target
		if len(plan.left) > 0 { // an update may be replacing the program
			doubt, settle = doubt+"\n"+plan.left[0], 10*settle
		}
		for _, s := range plan.Skipped {
			doubt += "\n" + s.Name + ": " + s.Err.Error()
		}
	}
	if doubt != a.doubt {
		a.doubt, a.doubtSince = doubt, a.now()
	}
	return max(0, settle-a.now().Sub(a.doubtSince))
}

// contested decides whether to put back an entry that was removed. If not, it says why, and how long to wait. It may take a file
// of our own instead.
func (a *Agent) contested(c Config, seen observed, plan Plan) (*BlockedError, time.Duration) {
	i := slices.IndexFunc(plan.actions, action.conf)
	if i < 0 || !a.held[plan.Target] || !slices.Contains(losses, plan.actions[i].Cause) {
		return nil, 0
	}
	found := plan.actions[i].Old
	now := a.now()
	_, alone := seen.conf.files[plan.Target+ciliumSuffix]
	alone = alone && found == nil
	report := func(losses int, over time.Duration) string {
		return culprit(plan.Target, plan.Target == c.ownName(), alone, a.wrote, found, losses, over)
	}
	why, enough := report(a.past.Losses+1, 0), false
	if cause := plan.actions[i].Cause; (cause == causeEntryRemoved || cause == causeConfAppeared) && !bytes.Equal(found, a.wrote) {
		enough = a.lost()
	}
	retry, begins := a.conflict.lost(now, alone, report)
	if begins {
		why = a.conflict.report
	}
	took := (enough || begins) && !a.opts.Hooked() && a.take(c, seen, plan, why)
	if took || begins {
		a.m.conflicts.Inc()
	}
	if took {
		return nil, 0
	}
	if begins {
		a.log.Error("a conflicting writer keeps removing our entry: backing off", "detail", a.conflict.report, "pause", a.conflict.pause.String())
	}
	if n := len(a.conflict.losses); retry && n > 1 {
		a.log.Warn("our entry was removed again", "detail", report(n, now.Sub(a.conflict.losses[0])))
	}
	if retry {
		return nil, 0
	}
	return &BlockedError{codeConflict, errors.New(a.conflict.report)}, max(time.Millisecond, a.conflict.until.Sub(now))
}

// puts reports whether an action brought back an entry that no file had, or that none had which the runtime loads.
func puts(act action) bool {
	switch act.Cause {
	case causeFirstInstall, causeEntryRemoved, causeOwnFileMissing, causeOwnFileTaken, causeConfAppeared:
		return act.conf()
	}
	return false
}

// losses are the causes for which somebody else has removed or changed the entry.
var losses = []cause{causeEntryRemoved, causeEntryChanged, causeOwnFileMissing, causeConfAppeared}

// settled remembers a node with the entry in place.
func (a *Agent) settled(c Config, seen observed, plan Plan) {
	if plan.Target == "" {
		return
	}
	if !a.held[plan.Target] {
		a.held[plan.Target] = true
		a.log.Info("installed", "file", filepath.Join(c.CNIConfDir, plan.Target), "network", plan.Network)
	}
	a.wrote, a.weighed = seen.conf.files[plan.Target].data, true
	a.taken = c.Chained && c.OwnFile == OwnFileAuto && plan.Target == c.ownName()
	a.m.ownFile.Set(map[bool]float64{true: 1}[c.OwnFile.wanted() && plan.Target == c.ownName()])
	a.note(c, plan)
	_ = diskfile.Reserve(c.CNIConfDir) // where there is no room for it, what is reserved so far has to do
}

func (a *Agent) lastTarget() string { return locked(a, &a.target) }

func (a *Agent) count(done []action) {
	for _, act := range done {
		if act.Cause == causeEntryElsewhere { // it is no loss that the file does not have it
			delete(a.held, filepath.Base(act.Path))
		}
		switch {
		case act.Cause == causeFirstInstall:
			if act.Op != opMoveAside {
				a.m.installs.Inc()
			}
		case act.Op != opRemoveTemp && a.lastTarget() != "": // the node had been in order
			a.m.repairs.WithLabelValues(string(act.Cause)).Inc()
		}
	}
}

func (a *Agent) token(seen observed) {
	if seen.credentialsErr != nil || seen.credentials.value == "" {
		return
	}
	since := seen.credentials.issued
	if since.IsZero() {
		since = a.now()
		if info, err := os.Stat(a.present().kubeconfig()); err == nil {
			since = info.ModTime()
		}
	}
	a.m.tokenIssued.Set(float64(since.Unix()))
	if exp := seen.credentials.expires; !exp.IsZero() {
		a.m.tokenExpires.Set(float64(exp.Unix()))
	}
	for _, kind := range boundTo {
		a.m.tokenBound.WithLabelValues(kind).Set(map[bool]float64{true: 1}[kind == seen.credentials.bound])
	}
}

func (a *Agent) failed(action string, err error) {
	a.m.failures.WithLabelValues(action).Inc()
	a.log.Error("a step failed; it will be tried again", "action", action, "error", err)
}

// report publishes the node's state and logs it if it has changed.
func (a *Agent) report(plan Plan, blocked []*BlockedError) {
	a.mu.Lock()
	was, wasTarget := join(a.blocked), a.target
	a.blocked = blocked
	if len(blocked) == 0 {
		a.target = plan.Target
	}
	before := a.neighbours
	if !plan.unseen {
		a.neighbours = plan.Neighbours
	}
	after := a.neighbours
	a.mu.Unlock()
	for _, n := range after {
		if !slices.Contains(before, n) {
			a.log.Warn(n.Text(), "code", string(news.OtherMesh), "plugin", n.Plugin)
		}
	}
	for _, n := range before {
		if !slices.Contains(after, n) {
			a.log.Info("no longer chained with ours", "plugin", n.Plugin, "position", n.Position, "file", n.File)
		}
	}
	switch is := join(blocked); {
	case is == nil && (was != nil || wasTarget != plan.Target):
		for _, n := range plan.Notes {
			a.log.Warn(n)
		}
		a.log.Info("ready", "file", plan.Target, "network", plan.Network)
	case is != nil && (was == nil || was.Error() != is.Error()):
		for _, b := range blocked {
			a.notReady(b)
		}
	}
}

func (a *Agent) notReady(b *BlockedError) {
	a.log.Warn("not ready", "code", string(b.Code), "reason", b.Err.Error())
	var none *conflist.NoNetworkError
	if errors.As(b.Err, &none) {
		for _, s := range none.Skipped {
			a.log.Warn("passed over", "file", s.Name, "reason", s.Err.Error())
		}
	}
}
