package nodecontrol_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// attachment of the pod's sandbox, as the plugin describes it.
func (n *node) attachment(uid types.UID, container string) agentsock.Attachment {
	n.t.Helper()
	pod := n.pods.get(uid)
	return agentsock.Attachment{
		ID:  attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"},
		Pod: status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: string(uid)}, Dialect: "ambient",
		NetNS: n.netns[uid].Path(), Addrs: []netip.Addr{netip.MustParseAddr("10.244.0.77")},
	}
}

// pending is a pod that the runtime is setting up: no process leads to its namespace, and it has no address.
func (n *node) pending(i int) types.UID {
	uid := n.pod(i)
	n.namespaces.mu.Lock()
	delete(n.namespaces.paths, uid)
	n.namespaces.mu.Unlock()
	n.pods.change(uid, func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })
	return uid
}

// onePending is a node with one pod of the mesh, which the runtime is setting up.
func onePending(t *testing.T) (*node, types.UID) {
	t.Helper()
	n := newNode(t, ruleset.BackendNftables)
	n.pods.label("shop", "ambient")
	uid := n.pending(1)
	n.start()
	return n, uid
}

func (n *node) attach(a agentsock.Attachment) (agentsock.Attached, error) {
	return n.c.Attach(context.Background(), a, open(n.t, a.NetNS))
}

func (n *node) runs(uid types.UID, addr string) {
	n.namespaces.mu.Lock()
	n.namespaces.paths[uid] = n.netns[uid].Path()
	n.namespaces.mu.Unlock()
	n.pods.change(uid, func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr}}}
	})
}

// TestAttach: an ADD returns once the pod is captured, and the annotation follows.
func TestAttach(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		n.pods.label("shop", "ambient")
		uid := n.pending(1)
		n.start()
		n.eventually(uid, status.StateWaiting, "no-address")
		a := n.attachment(uid, "c1")
		got, err := n.attach(a)
		require.NoError(t, err)
		assert.Equal(t, n.backend, got.Backend)
		assert.True(t, got.Changed)
		assert.True(t, got.Rules.Equal(rulesOf(t, n.pods.get(uid))))
		differ, _ := n.rules(uid)
		assert.Empty(t, differ)
		assert.True(t, n.proxy.holds(uid))
		assert.Equal(t, status.StateCaptured, n.state(uid).State)
		n.runs(uid, "10.244.0.77")
		n.captured(uid)

		again, err := n.attach(a)
		require.NoError(t, err)
		assert.False(t, again.Changed)

		// The runtime makes another sandbox before it removes the first.
		first := n.netns[uid]
		n.sandbox(uid)
		_, err = n.attach(n.attachment(uid, "c2"))
		require.NoError(t, err)
		require.NoError(t, n.c.Detach(t.Context(), a.ID))
		n.captured(uid)
		assert.NotEqual(t, first.ID(), n.proxy.in(uid))

		n.namespaces.mu.Lock()
		delete(n.namespaces.paths, uid)
		n.namespaces.mu.Unlock()
		for range 2 {
			require.NoError(t, n.c.Detach(t.Context(), n.attachment(uid, "c2").ID))
		}
		assert.False(t, n.proxy.holds(uid))
		n.pods.change(uid, nil)
		n.until("forgotten", func() bool { return len(n.c.Pods()) == 0 && len(n.namespaces.Known()) == 0 })
	})
}

// TestAttachFails: closed, with the step and the reason, and the namespace is as it was.
func TestAttachFails(t *testing.T) {
	t.Parallel()
	nobody := errors.New("no proxy is connected")
	for name, c := range map[string]struct {
		with         func(n *node, uid types.UID)
		step, reason string
	}{
		"no proxy":    {func(n *node, _ types.UID) { n.proxy.set(func(p *proxy) { p.down = nobody }) }, "hand-over", "no-proxy"},
		"refused":     {func(n *node, _ types.UID) { n.proxy.fault = func(nodeproxy.Workload) error { return errFault } }, "hand-over", "hand-over-failed"},
		"not in mesh": {func(n *node, _ types.UID) { n.pods.label("shop", "") }, "selection", "not-enabled"},
		"bad settings": {func(n *node, uid types.UID) {
			n.pods.change(uid, func(p *corev1.Pod) {
				p.Annotations = map[string]string{"ambient.istio.io/dns-capture": "perhaps"}
			})
		}, "selection", "pod-refused"},
		"one listener is missing": {func(n *node, _ types.UID) { n.proxy.skip = "udp 127.0.0.1:15053" }, "listeners", "no-listeners"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, ruleset.BackendNftables)
			n.pods.label("shop", "ambient")
			uid := n.pending(1)
			c.with(n, uid)
			n.start()
			_, err := n.attach(n.attachment(uid, "c1"))
			var step *agentsock.StepError
			require.ErrorAs(t, err, &step)
			assert.Equal(t, []string{c.step, c.reason}, []string{step.Step, string(step.Reason)}, "%v", err)
			_, left := n.rules(uid)
			assert.Empty(t, left)
			assert.False(t, n.proxy.holds(uid))
			entries, _ := n.probes.Entries()
			assert.Empty(t, entries)
			assert.Empty(t, n.namespaces.Known())
			assert.NotEqual(t, status.StateCaptured, n.state(uid).State)
		})
	}
}

// TestAttachAwaitsTheProxy: as long as the plugin can, which then hears that it was the proxy that did not come.
func TestAttachAwaitsTheProxy(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	nobody := fmt.Errorf("it disconnected: %w", nodeproxy.ErrNoProxy)
	down := func(p *proxy) { p.down = nobody }
	up := func(p *proxy) { p.down = nil }
	n.proxy.set(down)
	n.pods.label("shop", "ambient")
	returns, breaks, late, gone, given := n.pending(1), n.pending(2), n.pending(3), n.pending(4), n.pending(5)
	n.start()
	n.until("ready for pods", func() bool { return !errors.Is(n.c.Ready(), nodecontrol.ErrNotSynced) })
	attach := func(uid types.UID, patience time.Duration) <-chan error {
		done := make(chan error, 1)
		a := n.attachment(uid, "c1")
		a.Patience = patience
		go func() {
			_, err := n.attach(a)
			done <- err
		}()
		return done
	}
	fails := func(err error, reason string) {
		t.Helper()
		var step *agentsock.StepError
		require.ErrorAs(t, err, &step)
		assert.EqualValues(t, reason, step.Reason)
	}
	err := <-attach(late, 100*time.Millisecond)
	fails(err, "no-proxy")
	require.ErrorIs(t, err, nobody)

	waits := attach(returns, time.Hour)
	n.proxy.mu.Lock()
	asked := n.proxy.asked
	n.proxy.mu.Unlock()
	n.until("it waits", func() bool { n.proxy.mu.Lock(); defer n.proxy.mu.Unlock(); return n.proxy.asked > asked+3 })
	n.proxy.set(up)
	require.NoError(t, <-waits)
	assert.True(t, n.proxy.holds(returns))

	// The proxy goes again while it is asked, once.
	var once sync.Once
	failed := make(chan struct{})
	n.proxy.set(func(p *proxy) {
		p.fault = func(w nodeproxy.Workload) (err error) {
			if w.UID == breaks {
				once.Do(func() { p.down, err = nobody, nobody; close(failed) })
			}
			return err
		}
	})
	waits = attach(breaks, time.Hour)
	<-failed
	n.proxy.set(up)
	require.NoError(t, <-waits)

	n.proxy.set(down)
	waits = attach(gone, time.Hour)
	n.pods.change(gone, nil)
	fails(<-waits, "unknown-pod")
	waits = attach(given, time.Hour)
	released, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = n.c.Release(released, "")
	require.NoError(t, err)
	fails(<-waits, "releasing")
}

// TestAttachOfWhatWasCaptured: a runtime that repeats ADD while the proxy is away does not lose what is there.
func TestAttachOfWhatWasCaptured(t *testing.T) {
	t.Parallel()
	n, uid := onePending(t)
	a := n.attachment(uid, "c1")
	_, err := n.attach(a)
	require.NoError(t, err)
	n.proxy.mu.Lock()
	n.proxy.fault = func(nodeproxy.Workload) error { return errFault }
	n.proxy.mu.Unlock()
	_, err = n.attach(a)
	require.ErrorIs(t, err, errFault)
	differ, _ := n.rules(uid)
	assert.Empty(t, differ)
	assert.True(t, n.proxy.holds(uid))
}

// TestAttachBeforeTheCache: the plugin may know of a pod before the agent does, and a pod that never comes fails.
func TestAttachBeforeTheCache(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.pods.label("shop", "ambient")
	uid := n.pending(1)
	pod := n.pods.get(uid)
	a := n.attachment(uid, "c1")
	n.pods.change(uid, nil)
	n.start()
	n.until("ready", func() bool { return n.c.Ready() == nil })
	done := make(chan error, 1)
	go func() {
		_, err := n.attach(a)
		done <- err
	}()
	n.until("somebody waits", func() bool { n.pods.mu.Lock(); defer n.pods.mu.Unlock(); return len(n.pods.subs) == 2 })
	n.pods.mu.Lock()
	n.pods.pods[uid] = pod
	delete(n.pods.namespaces, "shop") // it is the first pod of its namespace here, which is read only now
	n.pods.mu.Unlock()
	n.pods.change(uid, func(*corev1.Pod) {})
	n.pods.label("shop", "ambient")
	require.NoError(t, <-done)

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	stranger := a
	stranger.Pod.UID = string(uidN(99))
	_, err := n.c.Attach(ctx, stranger, open(t, a.NetNS))
	var step *agentsock.StepError
	require.ErrorAs(t, err, &step)
	assert.EqualValues(t, "unknown-pod", step.Reason)
	require.ErrorIs(t, err, agentsock.ErrUnknown)
}

// TestAttachIsInTime: who hangs up has no captured pod.
func TestAttachIsInTime(t *testing.T) {
	t.Parallel()
	n, uid := onePending(t)
	ctx, cancel := context.WithCancel(t.Context())
	n.proxy.fault = func(nodeproxy.Workload) error { cancel(); return nil }
	a := n.attachment(uid, "c1")
	_, err := n.c.Attach(ctx, a, open(t, a.NetNS))
	require.ErrorIs(t, err, context.Canceled)
	_, left := n.rules(uid)
	assert.Empty(t, left)
	assert.False(t, n.proxy.holds(uid))
}

// TestAttachClosesItsFile: whatever happens.
func TestAttachClosesItsFile(t *testing.T) {
	t.Parallel()
	n, uid := onePending(t)
	for _, dialect := range []string{"ambient", "another"} {
		a := n.attachment(uid, "c1")
		a.Dialect = dialect
		f := open(t, a.NetNS)
		_, err := n.c.Attach(t.Context(), a, f)
		assert.Equal(t, dialect == "another", err != nil)
		assert.ErrorIs(t, f.Close(), os.ErrClosed)
	}
}

// TestLongFault: however much a fault of one pod has to say, what the agent says of it is bounded.
func TestLongFault(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.pods.label("shop", "ambient")
	n.proxy.fault = func(nodeproxy.Workload) error { return errors.New(strings.Repeat("a long story, ", 1<<14)) }
	uid := n.pod(1)
	n.start()
	n.eventually(uid, "waiting", "hand-over-failed")
	s := n.state(uid)
	assert.Contains(t, s.Detail, "a long story")
	assert.LessOrEqual(t, len(s.Detail), 1024)
	for _, w := range n.c.News() {
		assert.Less(t, len(w.Text), 1400)
	}
}
