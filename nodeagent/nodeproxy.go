//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/node/nodelock"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// lockFile is the lock in the run directory by which one agent at a time has the pods of the node's proxy.
const lockFile = "ambient.lock"

// beginAgain is the wait before the agent tries again to begin.
const beginAgain = 2 * time.Second

// holder has the pods while it is this agent's turn; *nodecontrol.Controller is one.
type holder interface {
	Run(ctx context.Context) error
	Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error)
	Detach(ctx context.Context, id attachment.ID) error
	Pods() []status.Pod
	Release(ctx context.Context, to string) ([]status.Pod, error)
	Capture()
	Ready() error
	News() []status.News
	prometheus.Collector
}

// proxied has the pods whose proxy is on the node. An agent that starts while another one still runs takes its turn over. While
// it is not this agent's turn, requests wait.
type proxied struct {
	supervisor[holder]

	lock nodelock.Lock
	// open makes the holder, and what has to run beside it until its context ends.
	open func(ctx context.Context) (h holder, beside func(context.Context) error, err error)

	releasing atomic.Int32 // requests for a release that have not ended
	succeeded atomic.Bool  // the agent that takes this one's place has asked for it

	gone bool               // this agent has the pods no more: another follows that has none. mu guards it
	end  context.CancelFunc // ends the part of run that has the pods, while that goes on
	idle chan struct{}      // closed when it has ended

	forget func(context.Context, Config) error

	left atomic.Bool // the agent leaves the node for good, and the proxy has no pod from it any more
}

func newProxied(s Config, log *slog.Logger, open func(context.Context) (holder, func(context.Context) error, error)) *proxied {
	p := &proxied{lock: nodelock.Lock{Path: filepath.Join(s.RunDir, lockFile)}, open: open}
	p.init("the controller of the node's proxy", s, func(s Config) any { return s.Effective() }, log)
	p.keeps = func(h holder) bool { return errors.Is(h.Ready(), nodecontrol.ErrReleasing) } // another would capture the pods
	return p
}

// change takes new settings.
func (p *proxied) change(s Config) {
	if p != nil {
		p.supervisor.change(s)
	}
}

// capture has pods captured again, with the present settings.
func (p *proxied) capture(h holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed {
		p.again()
	} else {
		h.Capture()
	}
	p.changed = false
}

// run works until the context ends. What goes wrong is tried again: the agent has other work to do.
func (p *proxied) run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	defer p.leave()
	for {
		if !p.wanted(ctx) {
			return nil // the caller ended it
		}
		err := p.have(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errResigned):
			continue
		case err == nil:
			err = errors.New("it ended by itself")
		}
		if p.fail(err) {
			p.log.Error("pods of a mesh whose proxy is on the node cannot be captured", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(beginAgain):
		}
	}
}

// wanted waits until this agent is to have the pods, which is at once unless it was told otherwise.
func (p *proxied) wanted(ctx context.Context) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		gone, news := p.gone, p.news
		p.mu.Unlock()
		if !gone {
			return true
		}
		select {
		case <-ctx.Done():
		case <-news:
		}
	}
	return false
}

// errResigned: resign ended the part of run that has the pods. The agent may have them again by the time that run sees it.
var errResigned = errors.New("another agent follows")

// have has the pods in turns until the context ends, or another agent follows that has none.
func (p *proxied) have(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	idle := make(chan struct{})
	p.mu.Lock()
	if p.gone {
		end()
	}
	p.end, p.idle = end, idle
	p.mu.Unlock()
	defer close(idle)
	defer end()
	if err := os.MkdirAll(filepath.Dir(p.lock.Path), 0o755); err != nil {
		return err
	}
	if err := p.lock.Run(ctx, p.turn); err != nil || ctx.Err() == nil {
		return err
	}
	return errResigned
}

func (p *proxied) isGone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// resign ends this agent's part once all pods are released, and removes what it keeps of them: the agent that follows has no right to.
func (p *proxied) resign(ctx context.Context) error {
	p.mu.Lock()
	p.gone = true
	idle := p.idle
	if p.end != nil {
		p.end()
	}
	p.tell()
	p.mu.Unlock()
	if idle != nil {
		<-idle // it ends what it does with a pod
	}
	if p.forget == nil {
		return nil
	}
	return p.forget(ctx, p.present())
}

// resume takes that back.
func (p *proxied) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = false
	p.tell()
}

// leave removes what the agent keeps on the node, if it leaves for good.
func (p *proxied) leave() {
	if !p.left.Load() {
		return
	}
	if err := p.forget(context.Background(), p.present()); err != nil {
		p.log.Error("what is kept for the pods of the node's proxy cannot all be removed", "error", err)
	}
}

// turn has the pods until its context ends.
func (p *proxied) turn(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, err := p.once(ctx, p.begin); err != nil {
			return err
		}
	}
	return nil
}

// begin opens the holder, and returns what runs it together with what is beside it.
func (p *proxied) begin(ctx context.Context) (holder, func(context.Context) error, error) {
	h, beside, err := p.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	p.log.Info("the pods of the node's proxy are this agent's")
	return h, func(ctx context.Context) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 2)
		for _, run := range []func(context.Context) error{h.Run, beside} {
			go func() { ended <- run(ctx) }()
		}
		err := <-ended
		stop()
		return errors.Join(err, <-ended)
	}, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// now returns the holder, if it is this agent's turn.
func (p *proxied) now() holder {
	if p == nil {
		return nil
	}
	if h, _ := p.state(); h != nil {
		return *h
	}
	return nil
}

// await waits for this agent's turn. If the agent cannot begin, the caller hears why at once: one whose time is over no longer
// listens.
func (p *proxied) await(ctx context.Context) (holder, error) {
	for {
		p.mu.Lock()
		h, news, failed := p.running, p.news, p.failed
		if p.gone {
			failed = nodecontrol.ErrReleasing
		}
		p.mu.Unlock()
		switch {
		case h != nil:
			return *h, failed
		case failed != nil:
			return nil, failed
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, errors.New("another agent of the node has not ended yet")
		}
	}
}

// Attach implements [agentsock.Handler].
func (p *proxied) Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
	began, patient, cancel := time.Now(), ctx, func() {}
	if a.Patience > 0 {
		patient, cancel = context.WithTimeout(ctx, a.Patience)
	}
	defer cancel()
	h, err := p.await(patient)
	if err != nil {
		_ = ns.Close()
		return agentsock.Attached{}, &agentsock.StepError{Step: agentsock.StepAgent, Reason: statuscode.NotBegun, Err: err}
	}
	if a.Patience > 0 {
		a.Patience = max(time.Nanosecond, a.Patience-time.Since(began))
	}
	return h.Attach(ctx, a, ns)
}

// Detach implements [agentsock.Handler]. What nobody hears of now is seen later.
func (p *proxied) Detach(ctx context.Context, id attachment.ID) error {
	if h := p.now(); h != nil {
		return h.Detach(ctx, id)
	}
	return nil
}

// Release implements [agentsock.Handler]. That the pods are another agent's is noted: an uninstall must not take
// from it what it has.
func (p *proxied) Release(ctx context.Context, r agentsock.ReleaseOptions) ([]status.Pod, error) {
	p.releasing.Add(1)
	defer p.releasing.Add(-1)
	if p.isGone() {
		if r.Undo {
			p.succeeded.Store(false)
			p.resume()
		}
		return nil, nil
	}
	p.succeeded.Store(r.Successor)
	h, err := p.await(ctx)
	if err != nil {
		return nil, err
	}
	dir := p.present().RunDir
	if r.Undo {
		p.capture(h)
		return nil, handedOver{}.write(dir)
	}
	if r.To == "" {
		left, err := h.Release(ctx, "")
		if r.Successor && err == nil && len(left) == 0 {
			err = p.resign(ctx)
		}
		return left, err
	}
	before, err := readHandedOver(dir)
	if err == nil {
		err = handedOver{To: r.To}.write(dir)
	}
	if err != nil {
		return nil, err
	}
	left, err := h.Release(ctx, r.To)
	switch {
	case err != nil: // nothing was begun
		err = errors.Join(err, before.write(dir))
	case len(left) == 0:
		err = handedOver{To: r.To, All: true}.write(dir)
		if r.Successor && err == nil {
			err = p.resign(ctx)
		}
	}
	return left, err
}

// pods returns what is known of the pods that the proxy has or is to have.
func (p *proxied) pods() []status.Pod {
	if h := p.now(); h != nil {
		return h.Pods()
	}
	return nil
}

// News gives the reason that the agent cannot be relied on for these pods, and their faults. That no proxy is connected is nothing that keeps
// the agent from being ready: were it, no agent could be replaced before its proxy, nor be installed before it; unless --ready-needs-proxy says
// that something waits for it.
func (p *proxied) News() (all []status.News) {
	if p == nil {
		return nil
	}
	h, failed := p.state()
	if h == nil {
		return news.NotReady(codeAmbientFailed, failed) // without one, the agent before this one has the pods, and ends when this one is ready
	}
	err := (*h).Ready()
	unsynced, releasing := errors.Is(err, nodecontrol.ErrNotSynced), errors.Is(err, nodecontrol.ErrReleasing)
	switch {
	case err == nil, releasing && p.succeeded.Load(): // the agent that follows is ready only afterwards, and this one would be stopped at once
	case unsynced:
		all = news.NotReady(codeAmbientPodsUnknown, err)
	case releasing:
		all = news.NotReady(codeAmbientReleasing, err)
	case p.present().Ambient.ReadyNeedsProxy:
		all = news.NotReady(codeNoProxy, err)
	}
	if err != nil && !unsynced && !releasing {
		all = append(all, news.New(status.KindFinding, codeNoProxy, "new pods of the mesh do not start: "+err.Error()))
	}
	return append(all, (*h).News()...)
}
