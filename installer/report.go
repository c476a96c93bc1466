//go:build linux

package installer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/internal/node/news"
)

// report tells of a node on which nothing is left to do, or nothing but to wait, and returns when to look again; 0: there is no need.
func (l *loop) report(c Config, seen observed, v verdict, doing performer) time.Duration {
	l.show(func(s *shown) { s.binDirs = seen.binDirs })
	l.token(c, seen.credentials)
	failed, _ := doing.failures()
	blocked := append(failed, v.Blocked...)
	retry := l.retry(doing)
	if v.wait > 0 {
		if len(blocked) > 0 {
			l.publish(v.Plan, blocked)
		}
		return soonest(v.wait, retry)
	}
	if v.Target != "" && !slices.ContainsFunc(v.actions, action.conf) {
		if err := l.memory.inPlace(c, seen, v.Plan); err != nil {
			l.failed("history", err)
		}
		l.m.ownFile.Set(map[bool]float64{true: 1}[c.OwnFile.Wanted() && v.Target == c.ownName()])
		_ = diskfile.Reserve(c.CNIConfDir, c.Identity.WithDefaults().Name) // where there is no room for it, what is reserved so far has to do
	}
	wait, why := l.memory.staying(seen, v.Plan)
	if why != nil && len(blocked) == 0 {
		blocked = append(blocked, why)
	}
	if exp := seen.credentials.expires; !exp.IsZero() && l.now().After(exp) {
		blocked = append(blocked, &BlockedError{codeTokenExpired, fmt.Errorf("the plugin's token expired at %s, and there is no newer one: does the API server answer, and is the node's clock right?", exp.Format(time.RFC3339))})
	}
	l.publish(v.Plan, blocked)
	return soonest(wait, retry)
}

// retry counts and logs what has failed, and returns when to try it again; 0 if nothing has.
func (l *loop) retry(doing performer) time.Duration {
	for _, f := range doing.failed {
		l.failed(string(f.op), f.err)
	}
	if len(doing.failed) == 0 {
		l.again.end()
		return 0
	}
	return l.again.longer()
}

func (l *loop) failed(step string, err error) {
	l.m.failures.WithLabelValues(step).Inc()
	l.log.Error("a step failed; it will be tried again", "action", step, "error", err)
}

// count tells of what has been done.
func (l *loop) count(done []action) {
	for _, act := range done {
		l.memory.did(act)
		switch {
		case act.Cause == causeFirstInstall:
			if act.Op != opMoveAside {
				l.m.installs.Inc()
			}
		case act.Op != opRemoveTemp && l.memory.target != "": // the node had been in order
			l.m.repairs.WithLabelValues(string(act.Cause)).Inc()
		}
	}
}

// token tells how old the plugin's token is, and with what it ends.
func (l *loop) token(c Config, given credentials) {
	if given.value == "" {
		return
	}
	since := given.issued
	if since.IsZero() {
		since = l.now()
		if info, err := os.Stat(c.kubeconfig()); err == nil {
			since = info.ModTime()
		}
	}
	l.m.tokenIssued.Set(float64(since.Unix()))
	if !given.expires.IsZero() {
		l.m.tokenExpires.Set(float64(given.expires.Unix()))
	}
	for _, kind := range boundTo {
		l.m.tokenBound.WithLabelValues(kind).Set(map[bool]float64{true: 1}[kind == given.bound])
	}
}

// publish shows the node's state, and logs it if it has changed.
func (l *loop) publish(plan Plan, blocked []*BlockedError) {
	was := l.showing()
	is, target := was, l.memory.target
	is.blocked, is.ownFile = blocked, l.memory.ownFile
	if !plan.unseen {
		is.neighbours = plan.Neighbours
	}
	if l.memory.recalled {
		is.since, is.installed = l.memory.past.Since, l.memory.past.Installed
	}
	if len(blocked) == 0 {
		l.memory.target = plan.Target
	}
	l.show(func(s *shown) { *s = is })
	for _, n := range is.neighbours {
		if !slices.Contains(was.neighbours, n) {
			l.log.Warn(n.Text(), "code", string(news.OtherMesh), "plugin", n.Plugin)
		}
	}
	for _, n := range was.neighbours {
		if !slices.Contains(is.neighbours, n) {
			l.log.Info("no longer chained with ours", "plugin", n.Plugin, "position", n.Position, "file", n.File)
		}
	}
	switch before, now := join(was.blocked), join(blocked); {
	case now == nil && (before != nil || target != plan.Target):
		for _, n := range plan.Notes {
			l.log.Warn(n)
		}
		l.log.Info("ready", "file", plan.Target, "network", plan.Network)
	case now != nil && (before == nil || before.Error() != now.Error()):
		for _, b := range blocked {
			l.notReady(b)
		}
	}
}

func (l *loop) notReady(b *BlockedError) {
	l.log.Warn("not ready", "code", string(b.Code), "reason", b.Err.Error())
	var none *conflist.NoNetworkError
	if errors.As(b.Err, &none) {
		for _, s := range none.Skipped {
			l.log.Warn("passed over", "file", s.Name, "reason", s.Err.Error())
		}
	}
}
