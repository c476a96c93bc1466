//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// agentThat serves the agent's socket in a run directory with what release answers, and returns what it is asked for.
func agentThat(t *testing.T, runDir string, left ...status.Pod) (asked chan agentsock.ReleaseOptions) {
	t.Helper()
	asked = make(chan agentsock.ReleaseOptions, 8)
	require.NoError(t, os.MkdirAll(runDir, 0o755))
	h := &having{running: new(atomic.Int32), release: func(string) ([]status.Pod, error) { return left, nil }}
	p := newProxied(in(runDir), quiet(), nil)
	p.set(held(h))
	server := &agentsock.Server{Handler: &socket{enroller: noting{p, asked}, log: quiet()}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	path := filepath.Join(runDir, agentsock.Name)
	go func() { done <- server.Serve(ctx, path) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	require.Eventually(t, func() bool { return agentsock.Client{Path: path}.Ready(ctx) == nil }, netnstest.Patience, time.Millisecond)
	return asked
}

// noting notes what is asked for.
type noting struct {
	enroller

	asked chan agentsock.ReleaseOptions
}

func (n noting) Release(ctx context.Context, r agentsock.ReleaseOptions) ([]status.Pod, error) {
	n.asked <- r
	return n.enroller.Release(ctx, r)
}

func held(h holder) *holder { return &h }

// TestReleaseByTheAgent: the running agent is asked for what the caller wants, and says which pods are left; without one the caller hears that.
func TestReleaseByTheAgent(t *testing.T) {
	dir, o := node(t)
	_, err := o.Release(t.Context(), agentsock.ReleaseOptions{Undo: true}, true)
	require.ErrorContains(t, err, "no agent runs on this node")
	_, err = o.Release(t.Context(), agentsock.ReleaseOptions{}, false)
	require.ErrorIs(t, err, ErrNoAgent)
	asked := agentThat(t, dir+"/run")
	for _, want := range []agentsock.ReleaseOptions{{To: "istio-cni"}, {Undo: true}, {}} {
		left, err := o.Release(t.Context(), want, true)
		require.NoError(t, err)
		assert.Empty(t, left)
		assert.Equal(t, want, <-asked)
	}
	busy, o := node(t)
	agentThat(t, busy+"/run", status.Pod{ID: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, State: status.StateDrifted, Reason: "not-released"})
	left, err := o.Release(t.Context(), agentsock.ReleaseOptions{To: "istio-cni"}, true)
	require.NoError(t, err)
	assert.Len(t, left, 1)
}

// TestGivenIsNotedFirst: an agent that is killed while it gives pods away leaves a note, which says whether it was done.
func TestGivenIsNotedFirst(t *testing.T) {
	dir := t.TempDir()
	var left []status.Pod
	var failure error
	var during []handedOver
	h := &having{running: new(atomic.Int32), release: func(string) ([]status.Pod, error) {
		g, err := readHandedOver(dir)
		require.NoError(t, err)
		during = append(during, g)
		return left, failure
	}}
	p := newProxied(in(dir), quiet(), nil)
	p.set(held(h))
	give := func(to string) (handedOver, error) {
		during = nil
		_, failed := p.Release(t.Context(), agentsock.ReleaseOptions{To: to})
		assert.Equal(t, []handedOver{{To: to}}, during, "before the first pod is given")
		g, err := readHandedOver(dir)
		require.NoError(t, err)
		return g, failed
	}
	failure = errors.New("nobody knows that agent")
	g, err := give("nobody")
	require.ErrorIs(t, err, failure)
	assert.Zero(t, g, "nothing was begun")

	failure, left = nil, []status.Pod{{Reason: "not-released"}}
	g, err = give("istio-cni")
	require.NoError(t, err)
	assert.Equal(t, handedOver{To: "istio-cni"}, g)
	left = nil
	g, err = give("istio-cni")
	require.NoError(t, err)
	assert.Equal(t, handedOver{To: "istio-cni", All: true}, g)
	failure = errors.New("nobody knows that agent")
	g, err = give("nobody")
	require.ErrorIs(t, err, failure)
	assert.Equal(t, handedOver{To: "istio-cni", All: true}, g, "as before")

	_, err = p.Release(t.Context(), agentsock.ReleaseOptions{Undo: true})
	require.NoError(t, err)
	g, err = readHandedOver(dir)
	require.NoError(t, err)
	assert.Zero(t, g)
}

// TestUninstallAfterPodsWereGiven: what another agent has stays its own, and what a hand-over that was interrupted did not give it
// is given to it now.
func TestUninstallAfterPodsWereGiven(t *testing.T) {
	for name, c := range map[string]struct {
		note  string
		asked []agentsock.ReleaseOptions
		err   string
	}{
		"to nobody":   {"", []agentsock.ReleaseOptions{{}}, ""},
		"interrupted": {`{"to":"istio-cni","all":false}`, []agentsock.ReleaseOptions{{To: "istio-cni"}}, ""},
		"all":         {`{"to":"istio-cni","all":true}`, nil, ""},
		"unreadable":  {`{"to`, nil, "learn to whom the pods were given"},
		"to whom":     {`{}`, nil, "it names no agent"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, o := node(t)
			o.Dialects = []dialect.Dialect{istio.New()}
			asked := agentThat(t, dir+"/run")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "run", lockFile), nil, 0o600))
			if c.note != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "run", handedOverFile), []byte(c.note), 0o600))
			}
			err := o.withDefaults().releaseBefore(t.Context(), o.Config)
			if c.err == "" {
				require.NoError(t, err)
				assert.NoFileExists(t, filepath.Join(dir, "run", handedOverFile))
			} else {
				require.ErrorContains(t, err, c.err)
				assert.FileExists(t, filepath.Join(dir, "run", handedOverFile), "nothing is guessed")
			}
			close(asked)
			var got []agentsock.ReleaseOptions
			for r := range asked {
				got = append(got, r)
			}
			assert.Equal(t, c.asked, got)
		})
	}
}

// TestUninstallThatReleasesNotAll: what is kept for the pods that are left stays, so that the next uninstall knows of them.
func TestUninstallThatReleasesNotAll(t *testing.T) {
	dir, o := node(t)
	o.Dialects = []dialect.Dialect{istio.New()}
	agentThat(t, dir+"/run", status.Pod{ID: status.ID{Namespace: "shop", Name: "cart"}, Reason: "not-released"})
	lock := filepath.Join(dir, "run", lockFile)
	require.NoError(t, os.WriteFile(lock, nil, 0o600))
	for range 2 {
		err := o.withDefaults().releaseBefore(t.Context(), o.Config)
		require.ErrorContains(t, err, "pod shop/cart is still in the care of the node's proxy")
		assert.FileExists(t, lock)
	}
}

// TestLeaving: an agent that leaves for good says so if it leaves captured pods behind, and what is kept for them.
func TestLeaving(t *testing.T) {
	for name, c := range map[string]struct {
		left   []status.Pod
		failed error
		turn   bool
		says   string
		forget bool
	}{
		"all are released":   {turn: true, forget: true},
		"one is not":         {turn: true, left: []status.Pod{{Reason: "not-released"}}, says: "not-released"},
		"it could not begin": {failed: errors.New("the socket's directory is a file"), says: "the socket's directory is a file"},
		"another has them":   {},
	} {
		t.Run(name, func(t *testing.T) {
			var log output
			p := newProxied(in(t.TempDir()), slog.New(slog.NewTextHandler(&log, nil)), nil)
			if c.turn {
				p.set(held(&having{running: new(atomic.Int32), release: func(string) ([]status.Pod, error) { return c.left, nil }}))
			}
			p.failed = c.failed
			forgot := false
			p.forget = func(context.Context, Config) error { forgot = true; return nil }
			leaves, why := p.leaving(nil)(t.Context())
			assert.True(t, leaves)
			assert.Equal(t, "--uninstall-on-exit", why)
			p.leave()
			assert.Equal(t, c.forget, forgot)
			if c.says == "" {
				assert.Empty(t, log.String())
			} else {
				assert.Contains(t, log.String(), c.says)
			}
		})
	}
}

// TestEndAwaitsARelease: an agent that ends lets a release end first that the next one has asked for.
func TestEndAwaitsARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		p := newProxied(in(t.TempDir()), quiet(), nil)
		p.set(held(&having{running: new(atomic.Int32), release: func(string) ([]status.Pod, error) { <-end; return nil, nil }}))
		asked := make(chan error, 1)
		go func() {
			_, err := p.Release(t.Context(), agentsock.ReleaseOptions{})
			asked <- err
		}()
		synctest.Wait()
		ended := make(chan struct{})
		go func() {
			p.awaitReleases(t.Context())
			close(ended)
		}()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the release goes on")
		default:
		}
		close(end)
		require.NoError(t, <-asked)
		<-ended
	})
}

// TestSuccessorWithoutPods: for an agent that follows and has no such pods, the agent releases all, removes what it keeps of them, and
// begins again only if that one tells it to. Until it is stopped it is ready.
func TestSuccessorWithoutPods(t *testing.T) {
	var running atomic.Int32
	left := []status.Pod{{Reason: "not-released"}}
	h := &having{name: "h", running: &running}
	h.release = func(string) ([]status.Pod, error) { h.say(nodecontrol.ErrReleasing); return left, nil }
	p := newProxied(in(t.TempDir()), quiet(), opener(h))
	forgotten := 0
	p.forget = func(context.Context, Config) error {
		forgotten++
		assert.Zero(t, running.Load(), "nothing writes any more what is removed")
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	successor := agentsock.ReleaseOptions{Successor: true}
	told, err := p.Release(ctx, successor)
	require.NoError(t, err)
	assert.Equal(t, left, told)
	assert.Zero(t, forgotten, "it is needed to release the rest")
	require.NoError(t, news.Err(p.News()))
	left = nil
	for range 2 { // and again
		told, err = p.Release(ctx, successor)
		require.NoError(t, err)
		assert.Empty(t, told)
		assert.Equal(t, 1, forgotten)
		assert.Nil(t, p.now())
		require.NoError(t, news.Err(p.News()))
	}
	_, err = p.Attach(ctx, agentsock.Attachment{}, file(t))
	require.ErrorIs(t, err, nodecontrol.ErrReleasing)

	h.say(nil)
	_, err = p.Release(ctx, agentsock.ReleaseOptions{Undo: true})
	require.NoError(t, err)
	attached, err := p.Attach(ctx, agentsock.Attachment{}, file(t))
	require.NoError(t, err)
	assert.EqualValues(t, "h", attached.Backend)
	h.release = func(string) ([]status.Pod, error) { h.say(nodecontrol.ErrReleasing); return nil, nil }
	_, err = p.Release(ctx, agentsock.ReleaseOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, news.Err(p.News()), string(codeAmbientReleasing)+": ", "by hand it is not ready")
	assert.Equal(t, 1, forgotten)
	cancel()
	require.NoError(t, <-done)
}
