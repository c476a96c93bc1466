//go:build linux

// Package daemonset tells an agent whether its DaemonSet is being deleted or wants its node no more, so that it uninstalls then, and
// not when its pod is stopped for another reason (an update, a reboot, a failed probe).
//
// Removing a release deletes the DaemonSet together with the role, its binding and the service account. The pods are stopped
// only afterwards, when they have lost the permission to ask. So a [Watch] follows the DaemonSet all the time, remembers its
// deletion, and asks once more at the end.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	nodeapi "github.com/meshcni/meshcni/internal/node/api"
)

// Watch is a watch of one DaemonSet. Make one with [New].
type Watch struct {
	api  api
	log  *slog.Logger
	name string

	mu    sync.Mutex
	first types.UID // of the first DaemonSet seen, which counts as the agent's own
	last  state
	blind bool // the DaemonSet cannot be watched, and that is logged
	live  bool // it is being watched now
	// said is closed, and made anew, when the watch has said something, or has ended.
	said chan struct{}
}

// state is the knowledge of the agent's own DaemonSet.
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

// Source leads to the API server and the DaemonSet to watch.
type Source struct {
	// API returns the agent's client. An error says why there is none.
	API func() (*nodeapi.Client, error)
	// Namespace and Name are the DaemonSet's, and Node is the agent's node, as the client has it. Empty Node: whether it is wanted cannot be told.
	Namespace, Name, Node string
}

// New makes a watch, which begins with Run.
func New(s Source, log *slog.Logger) *Watch {
	return &Watch{api: api{source: s}, log: log, name: s.Namespace + "/" + s.Name, said: make(chan struct{})}
}

// The bounds of the pauses between attempts. They spare an API server that has just come back thousands of nodes at once;
// each lists the metadata of one object. A pause is up to twice as long, by chance, so that nodes do not ask all at once.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Run watches until the context ends. It logs an outage once.
func (w *Watch) Run(ctx context.Context) {
	patient := wait.Backoff{Duration: firstPause, Factor: 2, Jitter: 1, Steps: math.MaxInt, Cap: lastPause}
	for pause := patient; ctx.Err() == nil; {
		began := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errBrief) {
			w.trouble(err)
		}
		if time.Since(began) > lastPause {
			pause = patient
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()): // up to twice as long, which spreads nodes
		}
	}
}

// errBrief means that something cuts watches off as soon as they begin. That is not an outage, because the list before each
// watch succeeds.
var errBrief = errors.New("the watch ended at once")

// follow lists the DaemonSet and then watches it, until that fails.
func (w *Watch) follow(ctx context.Context) error {
	found, version, err := w.api.list(ctx)
	if err != nil {
		return err
	}
	w.note(found)
	w.trouble(nil)
	w.setLive(true)
	defer w.setLive(false)
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

func (w *Watch) setLive(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live = on
	w.wake()
}

// wake needs the lock.
func (w *Watch) wake() {
	close(w.said)
	w.said = make(chan struct{})
}

// await returns once a watch says that the DaemonSet leaves, no watch goes on, or the context ends.
func (w *Watch) await(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		over, said := w.last.leaving() || !w.live, w.said
		w.mu.Unlock()
		if over {
			return
		}
		select {
		case <-said:
		case <-ctx.Done():
		}
	}
}

// note records what the server has; nil means no DaemonSet.
func (w *Watch) note(d *object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.last
	w.last = w.judge(d)
	if d != nil && w.first == "" {
		w.first = d.UID
	}
	w.wake()
	if w.last != was {
		w.log.Info("the agent's DaemonSet", "name", w.name, "is", words[w.last])
	}
}

// judge needs the lock. The absence of a DaemonSet that was never seen proves nothing: the name may be wrong.
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

// trouble logs, once each, that the DaemonSet cannot be watched, and that it can be watched again.
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

// Bound is the longest time that [Watch.Leaving] takes.
const Bound = 3 * time.Second

// Leaving reports whether the DaemonSet is being deleted or is gone, or wants the node no more, and how that is known. Unless a watch that still goes on has
// said so, it asks the server once more; if that fails, what was watched counts, and if it is forbidden, what the watch says then. Another DaemonSet of the same name is no reason to leave: its agent takes over the
// node, and until then the plugin keeps capturing pods.
func (w *Watch) Leaving(ctx context.Context) (leaving bool, why string) {
	w.mu.Lock()
	last, live := w.last, w.live
	w.mu.Unlock()
	if live && last.leaving() { // the right to ask may be gone with the DaemonSet
		return true, fmt.Sprintf("DaemonSet %s is %s", w.name, words[last])
	}
	ctx, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	d, err := w.api.get(ctx, nodeapi.DaemonSets, w.api.source.Namespace, w.api.source.Name)
	if err == nil {
		w.note(d)
	} else if apierrors.IsForbidden(err) { // the right may be gone with the DaemonSet, and the watch about to say so
		w.await(ctx)
	}
	w.mu.Lock()
	last = w.last
	w.mu.Unlock()
	why = fmt.Sprintf("DaemonSet %s is %s", w.name, words[last])
	if err != nil {
		why += fmt.Sprintf(" (by what was seen before; now: %v)", err)
	}
	if last != present {
		return last.leaving(), why
	}
	// The pods of a namespace that is deleted go before its DaemonSets do (Kubernetes 1.33, KEP-5080).
	if ns, errNS := w.api.get(ctx, nodeapi.Namespaces, "", w.api.source.Namespace); errNS == nil && ns != nil && ns.DeletionTimestamp != nil {
		return true, "the agent's namespace is being deleted"
	}
	if err != nil { // what was seen before tells nothing of the node
		return false, why
	}
	unwanted, err := w.unwanted(ctx)
	if err != nil {
		return false, fmt.Sprintf("%s; whether it wants the node %q cannot be told: %v", why, w.api.source.Node, err)
	}
	if unwanted != "" {
		return true, fmt.Sprintf("DaemonSet %s does not want the node %q: %s", w.name, w.api.source.Node, unwanted)
	}
	return false, why
}

// unwanted returns the reason for which the DaemonSet does not want the agent's node; "" if it does.
func (w *Watch) unwanted(ctx context.Context) (string, error) {
	client, err := w.api.connect()
	if err != nil {
		return "", err
	}
	set, err := client.DaemonSet(ctx, w.api.source.Namespace, w.api.source.Name)
	if err != nil {
		return "", err
	}
	node, err := client.Node(ctx)
	if err != nil {
		return "", err
	}
	// Nothing of an object that is not whole, or is another's, may be taken for a reason to leave.
	if set.UID == "" || node.UID == "" || node.Name != w.api.source.Node || len(set.Spec.Template.Spec.Containers) == 0 || set.UID != w.own() {
		return "", errors.New("the API server's answer is not the agent's DaemonSet and node")
	}
	_, why, err := Place(node, &set.Spec.Template.Spec, "")
	return why, err
}

// own is the UID of the agent's own DaemonSet.
func (w *Watch) own() types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
}
