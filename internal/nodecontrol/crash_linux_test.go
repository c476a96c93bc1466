package nodecontrol_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestRestart: a controller without memory takes over what it finds, leaves alone what is well, and ends what another began.
func TestRestart(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		stays, leaves, ends, vanishes, half := n.pod(1), n.pod(2), n.pod(3), n.pod(4), n.pod(5)
		n.pods.label("shop", "ambient")
		n.start()
		for _, uid := range []types.UID{stays, leaves, ends, vanishes, half} {
			n.captured(uid)
		}
		n.kill()
		n.pods.mu.Lock()
		n.pods.writes = nil
		n.pods.mu.Unlock()
		n.flush(half)
		n.pods.change(leaves, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
		n.pods.change(ends, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		n.pods.change(vanishes, nil)
		n.start()
		n.captured(stays)
		n.captured(half)
		n.outside(leaves)
		n.eventually(ends, status.StateOutside, "ended")
		n.until("those that are gone are forgotten", func() bool {
			entries, _ := n.probes.Entries()
			return len(n.namespaces.Known()) == 2 && !n.proxy.holds(ends) && !n.proxy.holds(vanishes) && len(entries) == 2 && len(n.c.Pods()) == 4
		})
		assert.Empty(t, n.pods.annotation(ends))
		n.pods.mu.Lock()
		defer n.pods.mu.Unlock()
		assert.NotContains(t, n.pods.writes, string(stays)+" enabled", "nothing was wrong with it")
	})
}

// TestProxyAway: captured pods stay captured, are not said to be, but to peers, and are handed over when a proxy is back.
func TestProxyAway(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	uid, outside := n.pod(1), n.pod(2)
	n.pods.change(outside, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
	n.pods.label("shop", "ambient")
	n.made = func(c *nodecontrol.Controller) { c.DeafAfter(0) }
	n.start()
	n.captured(uid)
	n.proxy.set(func(p *proxy) { p.down = errors.New("no proxy is connected") })
	n.c.ProxyChanged()
	n.eventually(uid, status.StateDrifted, "no-proxy")
	differ, _ := n.rules(uid)
	assert.Empty(t, differ, "no connection passes the mesh")
	require.ErrorContains(t, n.c.Ready(), "no proxy is connected")
	require.NotErrorIs(t, n.c.Ready(), nodecontrol.ErrNotSynced)
	assert.Contains(t, fmt.Sprint(n.c.News()), "1 pods have lost something of their redirection, such as shop/cart-1 (no-proxy")

	n.proxy.set(func(p *proxy) { p.down = nil })
	n.c.ProxyChanged()
	n.captured(uid)
	assert.Equal(t, []string{string(uid) + " enabled"}, n.pods.written(), "peers were never told to send plaintext")
	require.NoError(t, n.c.Ready())
	assert.Empty(t, n.c.News())
	assert.False(t, n.proxy.holds(outside))
}

// TestProxyListensUnconnected: a proxy that has lost its connection still serves the pods that it accepted. A controller that does
// not know of that believes no listener, and changes nothing.
func TestProxyListensUnconnected(t *testing.T) {
	t.Parallel()
	n, uid := oneCaptured(t)
	connected := func(err error) {
		n.proxy.mu.Lock()
		n.proxy.down = err // its listeners stay
		n.proxy.mu.Unlock()
		n.c.ProxyChanged()
	}
	connected(errFault)
	n.flush(uid)
	n.until("rules that went missing are back", func() bool { differ, _ := n.rules(uid); return len(differ) == 0 })
	n.captured(uid)

	n.kill()
	n.start()
	n.eventually(uid, status.StateDrifted, "no-proxy")
	n.until("looked at", func() bool { return n.metric("queue_depth{}") == 0 })
	differ, _ := n.rules(uid)
	assert.Empty(t, differ)
	assert.Equal(t, "enabled", n.pods.annotation(uid), "peers go on to use the tunnel")
	connected(nil)
	n.captured(uid)
}

// TestProxyLeavesWhileAsked: a proxy that loses its connection while a pod is handed to it once more goes on to serve the pod, as
// TestProxyListensUnconnected has it.
func TestProxyLeavesWhileAsked(t *testing.T) {
	t.Parallel()
	n, uid := oneCaptured(t)
	asked := make(chan struct{})
	n.proxy.set(func(p *proxy) {
		p.fault = func(nodeproxy.Workload) error {
			if p.down == nil {
				close(asked)
			}
			p.down = errFault
			return errFault
		}
	})
	n.c.ProxyChanged()
	<-asked
	n.flush(uid)
	n.until("rules that went missing are back", func() bool { differ, _ := n.rules(uid); return len(differ) == 0 })
	n.captured(uid)
}

// TestImpostor: a pod that listens where the proxy would is not captured while no proxy is connected.
func TestImpostor(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.proxy.set(func(p *proxy) { p.down = errFault })
	uid := n.pod(1)
	ns := open(t, n.netns[uid].Path())
	impostor := &proxy{has: map[types.UID]*held{}}
	require.NoError(t, impostor.Add(t.Context(), nodeproxy.Workload{PodID: nodeproxy.PodID{UID: uid}, NetNS: ns}))
	require.NoError(t, ns.Close())
	n.pods.label("shop", "ambient")
	n.start()
	n.eventually(uid, status.StateWaiting, "no-proxy")
	_, rules := n.rules(uid)
	assert.Empty(t, rules)
	assert.Empty(t, n.pods.annotation(uid))

	require.NoError(t, impostor.Remove(t.Context(), uid))
	n.proxy.set(func(p *proxy) { p.down = nil })
	n.c.ProxyChanged()
	n.captured(uid)
}

// endless is a store whose searches, from some time on, end only with their context.
type endless struct {
	*namespaces
	from   atomic.Bool
	begins chan struct{}
}

func (e *endless) Find(ctx context.Context, pod nodecontrol.Sought) (nodecontrol.NetNS, error) {
	if !e.from.Load() {
		return e.namespaces.Find(ctx, pod)
	}
	e.begins <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestEndSaysNothing: what was under way when the controller ended is not told of a pod.
func TestEndSaysNothing(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]bool{"looked at": false, "given away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, ruleset.BackendNftables)
			store := &endless{namespaces: n.namespaces, begins: make(chan struct{})}
			n.options = func(o *nodecontrol.Options) { o.Namespaces, o.VerifyInterval = store, -1 }
			uid := n.pod(1)
			n.pods.label("shop", "ambient")
			n.start()
			n.captured(uid)
			n.until("nothing is under way", func() bool { return n.metric("queue_depth{}") == 0 })
			<-n.events.Events // that it has joined
			store.from.Store(true)
			if release {
				canceled, cancel := context.WithCancel(t.Context())
				cancel()
				_, err := n.c.Release(canceled, "istio-cni")
				require.NoError(t, err)
			} else {
				n.pods.change(uid, func(*corev1.Pod) {})
			}
			<-store.begins
			n.kill()
			assert.Equal(t, status.StateCaptured, n.state(uid).State)
			assert.Empty(t, n.events.Events)
		})
	}
}

// TestNothingBeforeTheSnapshot: neither a pod nor a proxy is touched before all pods are known.
func TestNothingBeforeTheSnapshot(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	in, unknown := n.pod(1), n.pod(2)
	n.pod(3)
	n.pods.change(uidN(3), func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
	n.pods.label("shop", "ambient")
	n.namespaces.mu.Lock()
	delete(n.namespaces.paths, unknown)
	n.namespaces.mu.Unlock()
	n.pods.unsynced = true
	n.start()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.c.Snapshot(canceled)
	require.ErrorIs(t, err, nodecontrol.ErrNotSynced)
	require.ErrorIs(t, n.c.Ready(), nodecontrol.ErrNotSynced)
	_, err = n.c.Release(canceled, "")
	require.ErrorIs(t, err, nodecontrol.ErrNotSynced)
	assert.Zero(t, n.proxy.count())
	n.pods.mu.Lock()
	n.pods.unsynced = false
	n.pods.mu.Unlock()

	workloads, err := n.c.Snapshot(t.Context())
	require.NoError(t, err)
	got := map[types.UID]bool{}
	for _, w := range workloads {
		got[w.UID] = w.NetNS != nil
		assert.Equal(t, "default", w.ServiceAccount)
	}
	assert.Equal(t, map[types.UID]bool{in: true, unknown: false}, got)
	n.captured(in)
	n.eventually(unknown, status.StateWaiting, "no-namespace")
}

// TestRelease: no pod is left that would be refused once the proxy goes, and none is captured after.
func TestRelease(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		uids := []types.UID{n.pod(1), n.pod(2), n.pod(3)}
		n.pods.label("shop", "ambient")
		n.start()
		for _, uid := range uids {
			n.captured(uid)
		}
		n.pods.mu.Lock()
		n.pods.fault = errFault // the API server is away: the pods count, and not the annotation
		n.pods.mu.Unlock()
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		left, err := n.c.Release(canceled, "")
		require.NoError(t, err)
		assert.NotEmpty(t, left)
		left, err = n.c.Release(t.Context(), "")
		require.NoError(t, err)
		assert.Empty(t, left)
		for _, uid := range uids {
			_, rules := n.rules(uid)
			assert.Empty(t, rules)
			assert.False(t, n.proxy.holds(uid))
		}
		n.pods.mu.Lock()
		n.pods.fault = nil
		n.pods.mu.Unlock()
		for _, uid := range uids {
			n.until("no annotation", func() bool { return n.pods.annotation(uid) == "" })
			n.outside(uid)
		}
		require.ErrorIs(t, n.c.Ready(), nodecontrol.ErrReleasing)
		_, err = n.attach(n.attachment(uids[0], "c9"))
		require.ErrorIs(t, err, nodecontrol.ErrReleasing)
	})
}

// TestReleaseAtOnce: whoever releases the pods of an agent that is gone, and ends, has looked at all of them.
func TestReleaseAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	var uids []types.UID
	for i := range 20 {
		uids = append(uids, n.pod(i+1))
	}
	n.pods.label("shop", "ambient")
	n.start()
	for _, uid := range uids {
		n.captured(uid)
	}
	n.kill()
	n.start()
	left, err := n.c.Release(t.Context(), "")
	require.NoError(t, err)
	assert.Empty(t, left)
	for _, uid := range uids {
		_, rules := n.rules(uid)
		assert.Empty(t, rules)
		assert.Empty(t, n.pods.annotation(uid))
		assert.False(t, n.proxy.holds(uid))
	}
}

// TestRounds: joining and leaving leaves nothing behind.
func TestRounds(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	uid := n.pod(1)
	for range longtest.Rounds(10, 100) {
		n.start() // it remembers no rounds before, so that none is held back
		n.pods.label("shop", "ambient")
		n.eventually(uid, status.StateCaptured, "captured")
		n.pods.label("shop", "")
		n.eventually(uid, status.StateOutside, "not-enabled")
		_, left := n.rules(uid)
		require.Empty(t, left)
		n.kill()
	}
	n.start()
	n.outside(uid)
}
