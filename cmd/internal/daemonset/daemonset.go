//go:build linux

// Package daemonset tells an agent whether the DaemonSet that runs it is being deleted, which is when it has to take back
// what it has put on the node. Its pod is stopped for many other reasons (an update, a reboot, a failed probe), after which
// another comes.
//
// Whoever takes a release away deletes the DaemonSet, and at once the role, its binding and the service account; the pods
// are stopped only afterwards, when they may not ask any more. So a [Watch] looks at the DaemonSet all the time, remembers
// that it went, and asks once more at the end.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Watch is a watch of one DaemonSet. Make one with [New].
type Watch struct {
	api  api
	log  *slog.Logger
	name string

	mu    sync.Mutex
	first types.UID // the UID of the DaemonSet that was there first, which is taken for the agent's own
	last  state
	blind bool // nothing is seen, and the log has said so
}

// state is what is known of the agent's own DaemonSet.
type state int

const (
	unknown state = iota
	present
	deleting // it has a deletion timestamp
	gone
	replaced // it is gone, and another of its name is there
)

func (s state) leaving() bool { return s == deleting || s == gone }

var words = map[state]string{
	unknown: "not known", present: "there", deleting: "being deleted", gone: "deleted", replaced: "another one",
}

// Source is how to reach the API server, and what to watch there.
type Source struct {
	// Config reaches the API server. It is called again, now and then, until it succeeds.
	Config func() (*rest.Config, error)
	// Namespace and Name are the DaemonSet's.
	Namespace, Name string
}

// New makes a watch. It does nothing before Run.
func New(s Source, log *slog.Logger) *Watch {
	return &Watch{api: api{source: s}, log: log, name: s.Namespace + "/" + s.Name}
}

// The bounds of the pauses between attempts. An attempt of thousands of nodes whose API server has just come back is no
// burden with these: it is a list of one object's metadata.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Run watches until the context ends. What it cannot see it says once in the log.
func (w *Watch) Run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errBrief) {
			w.trouble(err)
		}
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // spreads nodes, keeps no secret
		}
		pause = min(2*pause, lastPause)
	}
}

// errBrief is the end of a watch that has just begun: something between us and the server cuts them off. It is no outage,
// since each look before a watch tells how things are.
var errBrief = errors.New("the watch ended at once")

// follow looks at the DaemonSet, and then at what becomes of it, until that fails.
func (w *Watch) follow(ctx context.Context) error {
	found, version, err := w.api.list(ctx)
	if err != nil {
		return err
	}
	w.note(found)
	w.trouble(nil)
	for {
		began := time.Now()
		version, err = w.api.watch(ctx, version, w.note)
		if err != nil {
			return err
		}
		if time.Since(began) < time.Second {
			return errBrief
		}
	}
}

// note takes in what the server says; nil is that there is none.
func (w *Watch) note(d *object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.last
	w.last = w.judge(d)
	if d != nil && w.first == "" {
		w.first = d.UID
	}
	if w.last != was {
		w.log.Info("the agent's DaemonSet", "name", w.name, "is", words[w.last])
	}
}

// judge needs the lock. A DaemonSet that was never seen is no evidence when it is not there: its name may be wrong.
func (w *Watch) judge(d *object) state {
	switch {
	case d == nil && w.first == "":
		return unknown
	case d == nil:
		return gone
	case w.first != "" && d.UID != w.first:
		return replaced
	case d.DeletionTimestamp != nil:
		return deleting
	}
	return present
}

// trouble says once that the DaemonSet cannot be watched, and why, or that it can again.
func (w *Watch) trouble(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.last == unknown {
		err = errors.New("there is none of this name: see --daemonset-name and POD_NAMESPACE")
	}
	if w.last.leaving() || w.blind == (err != nil) {
		return
	}
	w.blind = err != nil
	if w.blind {
		w.log.Warn("the agent's DaemonSet cannot be watched: should it be deleted meanwhile, the plugin stays", "name", w.name, "error", err)
		return
	}
	w.log.Info("the agent's DaemonSet is watched again", "name", w.name)
}

// Bound is how long [Watch.Leaving] takes at most.
const Bound = 3 * time.Second

// Leaving reports whether the DaemonSet is being deleted, or is gone, and why that is thought. It asks the server once more,
// and believes the watch where that may not be asked any more or does not answer. That another DaemonSet of the name is
// there is no reason to leave: its agent takes over what is on the node, and until it does pods are captured by what is there.
func (w *Watch) Leaving(ctx context.Context) (leaving bool, why string) {
	ctx, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	d, err := w.api.get(ctx)
	if err == nil {
		w.note(d)
	}
	w.mu.Lock()
	last := w.last
	w.mu.Unlock()
	why = fmt.Sprintf("DaemonSet %s is %s", w.name, words[last])
	if err != nil {
		why += fmt.Sprintf(" (by what was seen before; now: %v)", err)
	}
	if last != present {
		return last.leaving(), why
	}
	// The pods of a namespace that is deleted go before its DaemonSets do (Kubernetes 1.33, KEP-5080).
	if ns, errNS := w.api.namespace(ctx); errNS == nil && ns != nil && ns.DeletionTimestamp != nil {
		return true, "the agent's namespace is being deleted"
	}
	return false, why
}
