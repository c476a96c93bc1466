//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// having is a holder that says what it is told to.
type having struct {
	name     string
	ready    atomic.Pointer[error]
	running  *atomic.Int32
	released atomic.Int32
	release  func(to string) ([]status.Pod, error) // nil: it takes all pods out
}

func (h *having) Run(ctx context.Context) error {
	h.running.Add(1)
	defer h.running.Add(-1)
	<-ctx.Done()
	return nil
}

func (h *having) Attach(_ context.Context, _ agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
	_ = ns.Close()
	return agentsock.Attached{Backend: ruleset.Backend(h.name)}, nil
}
func (h *having) Detach(context.Context, attachment.ID) error { return nil }
func (h *having) Pods() []status.Pod {
	return []status.Pod{{ID: status.ID{Name: h.name}, State: status.StateCaptured}}
}

func (h *having) Capture() {}
func (h *having) Release(_ context.Context, to string) ([]status.Pod, error) {
	h.released.Add(1)
	if h.release != nil {
		return h.release(to)
	}
	return nil, nil
}

func (h *having) Ready() error {
	if err := h.ready.Load(); err != nil {
		return *err
	}
	return nil
}
func (h *having) News() []status.News {
	return []status.News{news.New(status.KindPod, news.Ambient, "w")}
}
func (h *having) Describe(chan<- *prometheus.Desc) {}
func (h *having) Collect(chan<- prometheus.Metric) {}
func (h *having) say(err error)                    { h.ready.Store(&err) }
func idle(ctx context.Context) error               { <-ctx.Done(); return nil }
func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	return f
}

// in are settings of a run directory.
func in(runDir string) (c Config) {
	c.RunDir = runDir
	return c
}
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
func opener(h holder) func(context.Context) (holder, func(context.Context) error, error) {
	return func(context.Context) (holder, func(context.Context) error, error) { return h, idle, nil }
}

// TestOneAgentHasThePods: what another agent asks of the one that has them waits until it has them itself, and never do two.
func TestOneAgentHasThePods(t *testing.T) {
	dir := t.TempDir() + "/run" // which the installer may make later
	var running atomic.Int32
	old, next := &having{name: "old", running: &running}, &having{name: "new", running: &running}
	a, b := newProxied(in(dir), quiet(), opener(old)), newProxied(in(dir), quiet(), opener(next))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 2)
	go func() { done <- a.run(ctx) }()
	attached, err := a.Attach(ctx, agentsock.Attachment{}, file(t))
	require.NoError(t, err)
	assert.EqualValues(t, "old", attached.Backend)
	go func() { done <- b.run(ctx) }()
	attached, err = b.Attach(ctx, agentsock.Attachment{}, file(t)) // waits for its turn
	require.NoError(t, err)
	assert.EqualValues(t, "new", attached.Backend)
	assert.Nil(t, a.now(), "its turn is over")
	assert.Empty(t, a.pods())
	assert.Equal(t, "new", b.pods()[0].Name)
	require.NoError(t, a.Detach(ctx, attachment.ID{}), "nobody is kept waiting by an agent without pods")
	require.NoError(t, news.Err(a.News()), "an agent that has been replaced")

	short, end := context.WithTimeout(ctx, time.Millisecond)
	defer end()
	_, err = a.Attach(short, agentsock.Attachment{}, file(t))
	var step *agentsock.StepError
	require.ErrorAs(t, err, &step)
	assert.Equal(t, []string{"agent", "not-begun"}, []string{step.Step, string(step.Reason)})

	_, err = b.Release(ctx, agentsock.ReleaseOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 1, next.released.Load())
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	assert.Zero(t, running.Load())
}

// TestReadinessOfAmbient: an agent that does not know its pods is not ready. One without a proxy is, and says so.
func TestReadinessOfAmbient(t *testing.T) {
	h := &having{name: "h", running: new(atomic.Int32)}
	p := newProxied(in(t.TempDir()), quiet(), opener(h))
	require.NoError(t, news.Err(p.News()), "the agent before this one still has the pods")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	_, err := p.await(ctx)
	require.NoError(t, err)
	require.NoError(t, news.Err(p.News()))
	assert.Equal(t, []string{"ambient: w"}, news.Warnings(p.News()))
	h.say(nodecontrol.ErrNotSynced)
	require.ErrorContains(t, news.Err(p.News()), string(codeAmbientPodsUnknown)+": ")
	assert.Equal(t, []string{"ambient: w"}, news.Warnings(p.News()), "not twice")
	h.say(errors.New("no proxy is connected"))
	require.NoError(t, news.Err(p.News()))
	assert.Equal(t, []string{"no-proxy: new pods of the mesh do not start: no proxy is connected", "ambient: w"}, news.Warnings(p.News()))
	s := p.present()
	s.Ambient.ReadyNeedsProxy = true // something keeps pods off the node until there is one
	p.change(s)
	require.ErrorContains(t, news.Err(p.News()), "no-proxy: no proxy is connected")
	cancel()
	require.NoError(t, <-done)
}

// TestWaitingForAnAgentThatCannotBegin: who waits when that turns out hears it, too.
func TestWaitingForAnAgentThatCannotBegin(t *testing.T) {
	p := newProxied(in(t.TempDir()), quiet(), nil)
	answered := make(chan error, 1)
	go func() {
		_, err := p.await(t.Context())
		answered <- err
	}()
	broken := errors.New("broken")
	p.fail(broken)
	require.ErrorIs(t, <-answered, broken)
}

// TestOneKeeperOfPods: who repairs pods and who hands them to the node's proxy have one keeper, of the one watch.
func TestOneKeeperOfPods(t *testing.T) {
	dir, o := node(t)
	o.Config.Node, o.Config.Ambient.Enabled, o.Config.Ambient.ZDSSocket = "n", true, dir+"/zds/ztunnel.sock"
	o.Config.Plugin.Dialects = netconf.Dialects{"istio", "ambient"}
	var has repair.Options
	o.open = func(r repair.Options) (controller, error) {
		has = r
		return nil, errors.New("it is not to run")
	}
	a, err := New(o)
	require.NoError(t, err)
	_, _, err = a.repairs.begin(t.Context())
	require.ErrorContains(t, err, "not to run")
	require.NotNil(t, has.Keeper)
	require.Same(t, a.sock.pods, has.Pods)
	parts := a.ambient()
	require.Same(t, has.Keeper, parts.keeper)
	require.Same(t, a.sock.pods, parts.pods)
}

// TestAmbientThatCannotBegin: the agent goes on with its other work, says why it is not ready, and tries again.
func TestAmbientThatCannotBegin(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	h := &having{name: "h", running: new(atomic.Int32)}
	p := newProxied(in(t.TempDir()), quiet(), func(context.Context) (holder, func(context.Context) error, error) {
		if broken.Load() {
			return nil, nil, errors.New("the socket's directory is a file")
		}
		return h, idle, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	require.Eventually(t, func() bool { return news.Err(p.News()) != nil }, netnstest.Patience, time.Millisecond)
	require.ErrorContains(t, news.Err(p.News()), "the socket's directory is a file")
	_, err := p.Attach(ctx, agentsock.Attachment{}, file(t))
	var step *agentsock.StepError
	require.ErrorAs(t, err, &step, "at once, and not when nobody listens any more")
	assert.EqualValues(t, "not-begun", step.Reason)
	require.ErrorContains(t, err, "the socket's directory is a file")
	broken.Store(false)
	require.Eventually(t, func() bool { return p.now() != nil }, netnstest.Patience, time.Millisecond)
	require.NoError(t, news.Err(p.News()))
	cancel()
	require.NoError(t, <-done)
}

// TestChangedWhileReleased: a changed configuration captures no pod that was released; it counts from when they are captured again.
func TestChangedWhileReleased(t *testing.T) {
	h := &having{name: "h", running: new(atomic.Int32)}
	opened := make(chan context.Context, 8)
	p := newProxied(in(t.TempDir()), quiet(), func(ctx context.Context) (holder, func(context.Context) error, error) {
		opened <- ctx
		return h, idle, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	_, err := p.await(ctx)
	require.NoError(t, err)
	first := <-opened
	s := p.present()
	h.say(nodecontrol.ErrReleasing)
	s.Plugin.RefuseProxyUID = true
	p.change(s)
	require.NoError(t, first.Err(), "another would capture them")
	assert.True(t, p.present().Plugin.RefuseProxyUID)
	h.say(nil)
	_, err = p.Release(ctx, agentsock.ReleaseOptions{Undo: true})
	require.NoError(t, err)
	require.Error(t, first.Err())
	second := <-opened
	require.Eventually(t, func() bool { return p.now() != nil }, netnstest.Patience, time.Millisecond)
	_, err = p.Release(ctx, agentsock.ReleaseOptions{Undo: true})
	require.NoError(t, err)
	require.NoError(t, second.Err(), "nothing has changed since")
	s.Plugin.RefuseProxyUID = false
	p.change(s)
	require.Error(t, second.Err())
	<-opened
	cancel()
	require.NoError(t, <-done)
}
