//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/status"
)

const (
	// leftoverAgain is the interval at which an agent without --ambient tries again to release the pods of the one before it.
	leftoverAgain = 10 * time.Second
	// leftoverLook is the interval at which it looks whether that agent has ended.
	leftoverLook = 100 * time.Millisecond
	// undoTime bounds the request by which that agent is told to go on.
	undoTime = 5 * time.Second
)

// leftover has the pods released that an agent with --ambient left in the care of the node's proxy, for one that runs without. The agent
// before it does so if it still runs, as in a rolling update with a surge: it has the rights and the connection to the proxy. Otherwise
// this process tries. Until that is done the agent is not ready, so that no rollout goes on and ends the agent that knows the pods.
type leftover struct {
	options  Options
	settings Config
	log      *slog.Logger
	free     chan struct{} // closed once no other agent serves the socket

	turn sync.Mutex // held by who releases

	mu     sync.Mutex
	why    error // why pods are held; nil: none is known to be
	unsure bool  // an agent has had pods, and kept no journal of them
	asked  bool  // the agent before this one has been, and has not ended
	pods   []status.Pod
}

// newLeftover returns nil if no pods are left.
func (o Options) newLeftover(s Config) *leftover {
	if s.Ambient.Enabled || !o.hadProxied(s) {
		return nil
	}
	return &leftover{options: o, settings: s, log: o.Log, free: make(chan struct{}), why: errors.New("they are being released")}
}

// run works until no pod is left, or the context ends.
func (l *leftover) run(ctx context.Context) error {
	if l == nil {
		return nil
	}
	for {
		left, err := l.byAgent(ctx)
		if errors.Is(err, ErrNoAgent) {
			break
		}
		l.set(left, errors.Join(err, unreleased(left)))
		pause := leftoverAgain
		if err == nil && len(left) == 0 {
			pause = leftoverLook // it is released; the rest is for when the agent that serves it has ended
		}
		if !l.sleep(ctx, pause) {
			return nil
		}
	}
	l.mu.Lock()
	l.asked = false
	l.mu.Unlock()
	close(l.free)
	for {
		if _, err := l.release(ctx); err == nil || !l.sleep(ctx, leftoverAgain) {
			return nil
		}
	}
}

func (l *leftover) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// byAgent has the agent release the pods that serves the socket. Without one that knows them, errors.Is(err, ErrNoAgent).
func (l *leftover) byAgent(ctx context.Context) ([]status.Pod, error) {
	given, err := readHandedOver(l.settings.RunDir)
	if err != nil {
		return nil, err
	}
	client := agentsock.Client{Path: filepath.Join(l.settings.RunDir, agentsock.Name)}
	ctx, cancel := context.WithTimeout(ctx, ReleaseTime)
	defer cancel()
	l.mu.Lock()
	l.asked = true
	l.mu.Unlock()
	left, err := client.Release(ctx, agentsock.ReleaseOptions{To: given.To, Successor: true})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, agentsock.ErrUnsupported) {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	return left, err
}

// undo has the agent before this one capture pods again: this one ends, and has not taken its place.
func (l *leftover) undo() {
	if l == nil {
		return
	}
	l.mu.Lock()
	asked := l.asked
	l.mu.Unlock()
	if !asked {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	client := agentsock.Client{Path: filepath.Join(l.settings.RunDir, agentsock.Name)}
	if _, err := client.Release(ctx, agentsock.ReleaseOptions{Undo: true}); err != nil {
		l.log.Warn("the agent that was on this node before may capture no pods of the node's proxy until it is started anew", "error", err)
	}
}

// release releases what is still held, without another agent.
func (l *leftover) release(ctx context.Context) ([]status.Pod, error) {
	l.turn.Lock()
	defer l.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, ReleaseTime)
	defer cancel()
	var left []status.Pod
	given, err := readHandedOver(l.settings.RunDir)
	held := l.options.holds(l.settings)
	if err == nil && held == 0 && !journaled(l.settings) {
		l.mu.Lock()
		l.unsure = true
		l.mu.Unlock()
		l.set(nil, nil)
		return nil, nil
	}
	if err == nil && !given.All && held > 0 {
		left, err = l.options.releaseAlone(ctx, l.settings, agentsock.ReleaseOptions{To: given.To})
	}
	if err = errors.Join(err, unreleased(left)); err == nil {
		if err = l.options.forgetProxied(ctx, l.settings); err != nil {
			l.log.Warn("what was kept for the pods of the node's proxy cannot all be removed", "error", err)
		}
		l.set(nil, nil)
		return nil, nil
	}
	l.set(left, err)
	return left, err
}

// Release implements [agentsock.Handler] for the pods that are left.
func (l *leftover) Release(ctx context.Context, r agentsock.ReleaseOptions) ([]status.Pod, error) {
	if r != (agentsock.ReleaseOptions{}) {
		return nil, agentsock.ErrUnsupported
	}
	left, err := l.release(ctx)
	if len(left) > 0 {
		err = nil // the answer names them
	}
	return left, err
}

// set notes what is left, and tells of what is new.
func (l *leftover) set(left []status.Pod, err error) {
	l.mu.Lock()
	before := l.why
	l.pods, l.why = left, err
	l.mu.Unlock()
	switch {
	case err == nil && before != nil:
		l.log.Info("no pod is in the care of the node's proxy any more")
	case err == nil || before != nil && before.Error() == err.Error():
	default:
		l.log.Error("pods are still in the care of the node's proxy", "error", err)
	}
}

// News gives the reason that the agent is not ready, or tells that pods may be held of which nothing is known.
func (l *leftover) News() []status.News {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return news.NotReady(codeAmbientPodsHeld, fmt.Errorf("this agent runs without --ambient, and pods of this node are still in the care of its proxy (%d in the journal and the records); "+
			"switch it on again, or run %s release on the node: %w", l.options.holds(l.settings), l.options.name(), l.why))
	}
	if _, err := os.Lstat(filepath.Join(l.settings.RunDir, lockFile)); !l.unsure || errors.Is(err, fs.ErrNotExist) {
		return nil // or somebody has released them since
	}
	return []status.News{news.New(status.KindFinding, news.Ambient, "pods of this node may still be in the care of its proxy, and this agent runs without --ambient: "+
		"switch it on again, run "+l.options.name()+" release on the node, and then switch it off")}
}

// journaled reports whether an agent has kept a journal of its pods on this node.
func journaled(s Config) bool {
	_, err := os.Lstat(filepath.Join(s.RunDir, "netns"))
	return !errors.Is(err, fs.ErrNotExist)
}

// states are the pods that could not be released.
func (l *leftover) states() []status.Pod {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods
}

// holds returns how many pods the journal and the plugin's records know that an agent handed to the node's proxy and has not released.
func (o Options) holds(s Config) int {
	held := map[string]bool{}
	entries, _ := filepath.Glob(filepath.Join(s.RunDir, "netns", "*.json"))
	for _, path := range entries {
		held[strings.TrimSuffix(filepath.Base(path), ".json")] = true
	}
	for _, row := range o.inventory(s).Look().Rows {
		if r := row.Record; r != nil && r.Selected && onNode(o.Dialects, r.Dialect) { // not one that was released
			held[r.Pod.UID] = true
		}
	}
	return len(held)
}
