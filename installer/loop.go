//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// loop is an [Agent] at work, in the one goroutine of [Agent.Run].
type loop struct {
	*Agent
	obs    *observer
	sock   *logSocket
	lease  *lease
	memory memory
	again  pause
	rested bool  // what was to be taken back has been
	acts   *bool // nil: that has not been decided
}

func (a *Agent) newLoop() *loop {
	c := a.present()
	l := &loop{Agent: a, obs: newObserver(), lease: leaseOf(c), memory: newMemory(a)}
	l.sock = newLogSocket(filepath.Join(c.RunDir, netconf.LogSocketName), a.opts.PluginLog, a.m)
	l.sock.unread, l.sock.decided = a.tokens.suspect, a.opts.OnDecision
	return l
}

func (l *loop) end() {
	l.lease.end()
	l.sock.close()
}

func (l *loop) run(ctx context.Context, w *watcher) {
	for ctx.Err() == nil {
		w.arm(l.watched())
		l.m.polling.Set(map[bool]float64{true: 1}[w.polling()])
		wait := l.opts.Poll
		if w.polling() {
			wait = min(wait, 500*time.Millisecond)
		}
		wait = soonest(wait, l.round(ctx))
		l.show(func(s *shown) { s.lastLoop = l.now() })
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-w.wake:
			// Look once at a burst of events: a rewrite is several, and ours cause some too.
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// watched returns the directories in which a change matters.
func (l *loop) watched() []string {
	c := l.present()
	dirs := append([]string{c.CNIConfDir, c.ServiceAccountDir, c.RunDir, c.BinSourceDir}, c.CNIBinDirs...)
	if snap, err := takeSnapshot(c.CNIConfDir); err == nil {
		dirs = append(dirs, snap.links...)
	}
	return append(dirs, l.opts.ReloadDirs...)
}

// round does what there is to do now. It returns after which time to look again even if nothing changes; 0 if there is no need.
func (l *loop) round(ctx context.Context) time.Duration {
	c := l.reload()
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil { // it may have been removed
		l.failed("run-dir", explain(err, c.RunDir))
	}
	if not := l.turn(c); not != nil {
		l.publish(Plan{}, []*BlockedError{not})
		if not.Code == codeSuperseded {
			return 0
		}
		return takeOverLook
	}
	if err := l.sock.ensure(); err != nil {
		l.failed("log-socket", err)
	}
	if _, err := os.Lstat(marker(c)); err == nil {
		return l.rest(ctx, c)
	}
	if c.Alone {
		return l.takeBack(ctx, c)
	}
	l.rested = false
	return l.install(c)
}

// install looks, plans, judges and performs until nothing is left to do now, and reports.
func (l *loop) install(c Config) time.Duration {
	l.memory.recall(c)
	fresh := true // losing a race for the file is not another loss of the entry
	var doing performer
	for range rounds {
		seen := l.look(c)
		plan := planInstall(c, seen)
		verdict := l.memory.judge(c, seen, plan, fresh)
		done, changed := doing.perform(verdict.actions, l.log)
		l.count(done)
		switch {
		case changed != nil:
			fresh = false
		case len(done) > 0 && verdict.wait == 0: // see that it holds
			fresh = true
		default:
			return l.report(c, seen, verdict, doing)
		}
	}
	return 10 * time.Millisecond
}

// look returns what there is on the node, and what the agent remembers of it.
func (l *loop) look(c Config) observed {
	seen := l.obs.look(c)
	seen.remembered = l.memory.remembered()
	if seen.credentialsErr == nil {
		seen.credentials = l.tokens.choose(seen.credentials, seen.kubeconfig)
	}
	return seen
}

// takeOverLook is the interval at which an agent that waits for its turn looks whether it could do its work.
const takeOverLook = 200 * time.Millisecond

// turn returns why it is not this agent's turn to act; nil if it is. It tells when the turn begins, and when it ends.
func (l *loop) turn(c Config) *BlockedError {
	waiting := func(why error) *BlockedError {
		return &BlockedError{codeWaiting, fmt.Errorf("the agent that was on this node before keeps the plugin installed until this one can: %w", why)}
	}
	if l.lease.foreign() {
		if err := l.unable(c); err != nil {
			return waiting(err)
		}
	}
	act, err := l.lease.keep()
	if err != nil {
		l.failed("lease", err)
	} else {
		err = errors.New("another agent has the lease") // which it took at the same time
	}
	if !act && !l.lease.claimed { // the older one may have taken the file for a killed agent's
		return waiting(err)
	}
	if l.acts == nil || *l.acts != act {
		l.acts = &act
		l.opts.OnTurn(act, !act && l.lease.besides())
	}
	if !act {
		l.forget()
		return &BlockedError{codeSuperseded, errors.New("another agent has begun on this node since, and keeps the plugin installed")}
	}
	return nil
}

// unable returns why this agent does not take the place of an older one that runs. One that took it all the same would end what works: the older
// one is stopped as soon as it is not ready.
func (l *loop) unable(c Config) error {
	if err := l.opts.TakeOver(); err != nil || c.Alone {
		return err
	}
	plan := planInstall(c, l.look(c))
	return join(append(plan.Blocked, plan.unwhole...))
}

// rest uninstalls once, because an uninstall has left its marker, and then does nothing.
func (l *loop) rest(ctx context.Context, c Config) time.Duration {
	l.forget()
	why := &BlockedError{codeUninstalled, fmt.Errorf("an uninstall has run; remove %s to install again", marker(c))}
	if !l.rested {
		if plan, err := uninstall(ctx, c, l.log); err != nil {
			return l.unsettled(ctx, "uninstall", plan, err, why)
		}
		l.rested = true
	}
	l.publish(Plan{}, []*BlockedError{why})
	return 0
}

// takeBack takes back, once, what an agent has put on the node, if nothing but the hook's plugin is to be there.
func (l *loop) takeBack(ctx context.Context, c Config) time.Duration {
	l.forget()
	if plan, err := settle(ctx, l.log, func() Plan { return planHook(c, l.obs.look(c)) }); err != nil {
		return l.unsettled(ctx, "hook-plugin", plan, err)
	}
	if !l.rested {
		if l.opts.TakeBack() != nil {
			l.publish(Plan{}, nil) // what is there captures pods
			return takeOverLook
		}
		plan, err := settle(ctx, l.log, func() Plan {
			seen := l.obs.lookForTakeBack(c)
			seen.hook = hooked{} // which stays
			return planUninstall(c, seen)
		})
		if err != nil {
			return l.unsettled(ctx, "take-back", plan, err)
		}
		l.again.end()
		l.rested = len(plan.Notes) == 0 // else the program stays for pods that are still there
	}
	l.publish(Plan{}, nil)
	return 0
}

// unsettled reports what settle could not do, and returns when to try it again: ever later.
func (l *loop) unsettled(ctx context.Context, step string, plan Plan, err error, why ...*BlockedError) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	l.failed(step, err)
	if len(plan.Blocked) == 0 {
		plan.Blocked = []*BlockedError{{codeWriteFailed, err}}
	}
	l.publish(Plan{}, append(why, plan.Blocked...))
	return l.again.longer()
}

// forget leaves it to the files on the node what became of the entry, when this agent acts again.
func (l *loop) forget() {
	l.memory.forget()
	l.m.ownFile.Set(0)
	l.show(func(s *shown) { s.ownFile = l.memory.ownFile })
}

// shallUninstall decides and logs whether to uninstall at the end.
func (l *loop) shallUninstall(ctx context.Context) bool {
	superseded := func() bool {
		act := !l.lease.foreign()
		if act {
			act, _ = l.lease.keep()
		}
		if !act {
			l.log.Info("stopping; another agent keeps the plugin installed")
		}
		return !act
	}
	switch {
	case !l.opts.UninstallOnExit:
		l.log.Info("stopping; the plugin stays installed")
		return false
	case superseded():
		return false
	}
	leaving, why := l.opts.Leaving(ctx)
	if !leaving {
		l.log.Info("stopping; the plugin stays installed", "because", why)
		return false
	}
	l.log.Info("stopping for good; the plugin is taken back", "because", why)
	return !superseded() // another agent may have begun while Leaving was asked
}

// pause is the time between attempts at what fails.
type pause time.Duration

// longer doubles it, from 1 s to 30 s.
func (p *pause) longer() time.Duration {
	*p = pause(min(max(2*time.Duration(*p), time.Second), 30*time.Second))
	return time.Duration(*p)
}

func (p *pause) end() { *p = 0 }

// soonest returns the shorter of two waits, of which 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
