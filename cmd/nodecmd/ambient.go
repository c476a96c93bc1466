//go:build linux

package nodecmd

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/internal/nodelock"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// turnsFile is the lock in the run directory by which one agent at a time has the pods of the node's proxy.
const turnsFile = "ambient.lock"

// beginAgain is the wait before the agent tries again to begin.
const beginAgain = 2 * time.Second

// holder has the pods while it is this agent's turn; *nodeproxy.Controller is one.
type holder interface {
	Run(ctx context.Context) error
	Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error)
	Detach(ctx context.Context, id attachment.ID) error
	Pods() []agentsock.PodState
	Release(ctx context.Context, to string) ([]agentsock.PodState, error)
	Capture()
	Ready() error
	Warnings() []string
	prometheus.Collector
}

// proxied has the pods whose proxy is on the node. An agent that starts while another one still runs takes its turn over. While
// it is not this agent's turn, requests wait.
type proxied struct {
	log  *slog.Logger
	lock nodelock.Lock
	// open makes the holder, and what has to run beside it until its context ends.
	open func(ctx context.Context) (h holder, beside func(context.Context) error, err error)

	mu     sync.Mutex
	holder holder // nil: it is not this agent's turn
	failed error  // why it could not begin
	news   chan struct{}

	releasing atomic.Int32 // requests for a release that have not ended
	succeeded atomic.Bool  // the agent that takes this one's place has asked for it

	gone bool               // this agent has the pods no more: another follows that has none. mu guards it
	end  context.CancelFunc // ends the part of run that has the pods, while that goes on
	idle chan struct{}      // closed when it has ended

	settings Settings
	again    context.CancelFunc // ends the holder's run, so that another begins with the present settings
	changed  bool               // the settings have, while the pods were released: another holder would capture them

	forget func(context.Context, Settings) error

	left atomic.Bool // the agent leaves the node for good, and the proxy has no pod from it any more
}

func newProxied(runDir string, log *slog.Logger, open func(context.Context) (holder, func(context.Context) error, error)) *proxied {
	return &proxied{log: log, lock: nodelock.Lock{Path: filepath.Join(runDir, turnsFile)}, open: open, news: make(chan struct{})}
}

// serve returns what serves the agent's socket, and what has the pods of the node's proxy: nil without --ambient. states is asked
// for the pods of both kinds.
func (p Program) serve(s Settings, states func(*proxied) []agentsock.PodState, log *slog.Logger) (*socket, *proxied, error) {
	if !s.Ambient.Enabled {
		sock, err := p.openSocket(s, log)
		if sock != nil {
			sock.states = func() []agentsock.PodState { return states(nil) }
		}
		return sock, nil, err
	}
	pods, err := p.nodePods(s, log)
	if err != nil {
		return nil, nil, err
	}
	held := newProxied(s.RunDir, log, nil)
	held.settings, held.open, held.forget = s, p.opener(held.present, log, pods, false), p.forgetProxied
	return p.newSocket(s, pods, held, func() []agentsock.PodState { return states(held) }, log), held, nil
}

// present returns the present settings.
func (p *proxied) present() Settings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings
}

// change takes new settings, and begins anew if they concern the pods.
func (p *proxied) change(s Settings) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := !reflect.DeepEqual(s.Repair.Plugin, p.settings.Repair.Plugin)
	p.settings = s
	switch {
	case !changed || p.again == nil:
	case p.holder != nil && errors.Is(p.holder.Ready(), nodeproxy.ErrReleasing):
		p.changed = true
		p.log.Info("the changed configuration counts when pods are captured again")
	default:
		p.log.Info("the controller of the node's proxy starts anew with the changed configuration")
		p.again()
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
		if ctx.Err() != nil {
			return nil
		}
		if err == nil && p.isGone() {
			continue
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		p.fail(err)
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
	return p.lock.Run(ctx, p.turn)
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
		if err := p.once(ctx); err != nil {
			return err
		}
	}
	return nil
}

// once has the pods until its context ends, or the settings change.
func (p *proxied) once(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p.mu.Lock()
	p.again = stop
	p.mu.Unlock()
	h, beside, err := p.open(ctx)
	if err != nil {
		return err
	}
	p.set(h)
	defer p.set(nil)
	p.log.Info("the pods of the node's proxy are this agent's")
	ended := make(chan error, 2)
	for _, run := range []func(context.Context) error{h.Run, beside} {
		go func() { ended <- run(ctx) }()
	}
	err = <-ended
	stop()
	return errors.Join(err, <-ended)
}

func (p *proxied) set(h holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holder, p.failed, p.changed = h, nil, false
	p.tell()
}

// tell wakes those that wait. The caller holds the lock.
func (p *proxied) tell() {
	close(p.news)
	p.news = make(chan struct{})
}

func (p *proxied) fail(err error) {
	p.mu.Lock()
	same := p.failed != nil && p.failed.Error() == err.Error()
	p.failed = err
	p.tell()
	p.mu.Unlock()
	if !same {
		p.log.Error("pods of a mesh whose proxy is on the node cannot be captured", "error", err)
	}
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
	h, _ := p.state()
	return h
}

// state returns the holder, or why the agent could not begin. Neither: it is not its turn.
func (p *proxied) state() (holder, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holder, p.failed
}

// await waits for this agent's turn. If the agent cannot begin, the caller hears why at once: one whose time is over no longer
// listens.
func (p *proxied) await(ctx context.Context) (holder, error) {
	for {
		p.mu.Lock()
		h, news, failed := p.holder, p.news, p.failed
		if p.gone {
			failed = nodeproxy.ErrReleasing
		}
		p.mu.Unlock()
		if h != nil || failed != nil {
			return h, failed
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, errors.New("another agent of the node has not ended yet")
		}
	}
}

// Attach is that of [agentsock.Handler].
func (p *proxied) Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
	began, patient, cancel := time.Now(), ctx, func() {}
	if a.Patience > 0 {
		patient, cancel = context.WithTimeout(ctx, a.Patience)
	}
	defer cancel()
	h, err := p.await(patient)
	if err != nil {
		_ = ns.Close()
		return agentsock.Attached{}, &agentsock.StepError{Step: agentsock.StepAgent, Reason: "not-begun", Err: err}
	}
	if a.Patience > 0 {
		a.Patience = max(time.Nanosecond, a.Patience-time.Since(began))
	}
	return h.Attach(ctx, a, ns)
}

// Detach is that of [agentsock.Handler]. What nobody hears of now is seen later.
func (p *proxied) Detach(ctx context.Context, id attachment.ID) error {
	if h := p.now(); h != nil {
		return h.Detach(ctx, id)
	}
	return nil
}

// Release is that of [agentsock.Handler]. That the pods are another agent's is noted: an uninstall must not take
// from it what it has.
func (p *proxied) Release(ctx context.Context, r agentsock.Release) ([]agentsock.PodState, error) {
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
		return nil, givenAway{}.write(dir)
	}
	if r.To == "" {
		left, err := h.Release(ctx, "")
		if r.Successor && err == nil && len(left) == 0 {
			err = p.resign(ctx)
		}
		return left, err
	}
	before, err := readGiven(dir)
	if err == nil {
		err = givenAway{To: r.To}.write(dir)
	}
	if err != nil {
		return nil, err
	}
	left, err := h.Release(ctx, r.To)
	switch {
	case err != nil: // nothing was begun
		err = errors.Join(err, before.write(dir))
	case len(left) == 0:
		err = givenAway{To: r.To, All: true}.write(dir)
		if r.Successor && err == nil {
			err = p.resign(ctx)
		}
	}
	return left, err
}

// pods returns what is known of the pods that the proxy has or is to have.
func (p *proxied) pods() []agentsock.PodState {
	if h := p.now(); h != nil {
		return h.Pods()
	}
	return nil
}

// ready returns why the agent cannot be relied on for these pods. That no proxy is connected is none of its business: were it,
// no agent could be replaced before its proxy, nor be installed before it; unless --ready-needs-proxy says that something waits for it.
func (p *proxied) ready() error {
	if p == nil {
		return nil
	}
	h, failed := p.state()
	switch {
	case h == nil && failed != nil:
		return because(codeAmbientFailed, failed)
	case h == nil:
		return nil // the agent before this one has the pods, and ends when this one is ready
	}
	err := h.Ready()
	if errors.Is(err, nodeproxy.ErrReleasing) && p.succeeded.Load() {
		return nil // the agent that follows is ready only afterwards, and this one would be stopped at once
	}
	if err != nil && (p.present().Ambient.ReadyNeedsProxy || errors.Is(err, nodeproxy.ErrNotSynced) || errors.Is(err, nodeproxy.ErrReleasing)) {
		return because(ambientCode(err), err)
	}
	return nil
}

// warnings returns what people should know.
func (p *proxied) warnings() (all []string) {
	h := p.now()
	if h == nil {
		return nil
	}
	if err := h.Ready(); err != nil && !errors.Is(err, nodeproxy.ErrNotSynced) && !errors.Is(err, nodeproxy.ErrReleasing) {
		all = append(all, "no-proxy: new pods of the mesh do not start: "+err.Error())
	}
	for _, text := range h.Warnings() {
		all = append(all, "ambient: "+text)
	}
	return all
}

// Describe implements [prometheus.Collector]. The metrics change with the holder.
func (p *proxied) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector] with the holder's metrics.
func (p *proxied) Collect(ch chan<- prometheus.Metric) {
	if h := p.now(); h != nil {
		h.Collect(ch)
	}
}
