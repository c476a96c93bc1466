package nodecontrol_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// theirs makes the rules of a pod those of Istio's own agent, as they are after it enrolled the pod.
func (n *node) theirs(uid types.UID) {
	n.t.Helper()
	pod := n.pods.get(uid)
	read, err := ambient.New(ambient.Options{}).Redirect(pod, nil, []netip.Addr{netip.MustParseAddr(pod.Status.PodIPs[0].IP)})
	require.NoError(n.t, err)
	_, err = apply.HandOver(n.t.Context(), n.netns[uid], ambient.AgentRuleset(read.Redirect), ambient.AgentLayout(), apply.Options{Backend: n.backend})
	require.NoError(n.t, err)
	n.pods.change(uid, func(p *corev1.Pod) { p.Annotations = map[string]string{ambient.Redirection: "enabled"} })
}

// live are the rules in a pod's namespace, by the kernel's own listing without what changes by itself.
func (n *node) live(uid types.UID) (rules []string) {
	n.t.Helper()
	all, err := apply.Live(n.t.Context(), n.netns[uid], apply.Options{Backend: n.backend})
	require.NoError(n.t, err)
	for _, r := range all {
		rules = append(rules, r.Table+" "+r.Chain+" "+r.Text)
	}
	slices.Sort(rules)
	return rules
}

// TestTakenOverAndGivenBack: pods of Istio's own agent become ours, and its again, and meanwhile the proxy has them and the
// annotation says so.
func TestTakenOverAndGivenBack(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		first, second, outside := n.pod(1), n.pod(2), n.pod(3)
		n.pods.change(outside, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
		n.theirs(first)
		n.theirs(second)
		before := n.live(first)
		require.NotEmpty(t, before)
		n.pods.label("shop", "ambient")
		n.start()
		n.captured(first)
		n.captured(second)
		assert.NotEqual(t, before, n.live(first))

		_, err := n.c.Release(t.Context(), "nobody")
		require.ErrorContains(t, err, `no mesh of this agent knows another agent "nobody"`)
		require.NoError(t, n.c.Ready(), "nothing was begun")

		left, err := n.c.Release(t.Context(), "istio-cni")
		require.NoError(t, err)
		assert.Empty(t, left)
		for _, uid := range []types.UID{first, second} {
			assert.Equal(t, before, n.live(uid))
			assert.Equal(t, "enabled", n.pods.annotation(uid), "peers go on to use the tunnel")
			assert.True(t, n.proxy.holds(uid), "the proxy keeps the pod")
			assert.Equal(t, []string{"outside", "given-away"}, []string{string(n.state(uid).State), string(n.state(uid).Reason)})
			assert.NotContains(t, n.namespaces.Known(), uid)
		}
		require.ErrorIs(t, n.c.Ready(), nodecontrol.ErrReleasing)
		assert.Contains(t, news.Warnings(n.c.News()), "ambient: the node's pods were released to istio-cni: none is captured until that is undone")
		_, err = n.attach(n.attachment(first, "c9"))
		require.ErrorIs(t, err, nodecontrol.ErrReleasing)
		workloads, err := n.c.Snapshot(t.Context())
		require.NoError(t, err)
		for _, w := range workloads {
			assert.Nil(t, w.NetNS, "a proxy that comes meanwhile keeps what it has")
		}
		assert.Len(t, workloads, 2)

		// To release them once more, as an uninstall does, is not for us any more.
		left, err = n.c.Release(t.Context(), "")
		require.NoError(t, err)
		assert.Empty(t, left)
		n.pods.change(first, func(*corev1.Pod) {})
		n.pods.label("shop", "ambient")
		n.until("looked at", func() bool { return n.metric("queue_depth{}") == 0 })
		assert.Equal(t, before, n.live(first))
		assert.Equal(t, "enabled", n.pods.annotation(first))
		assert.True(t, n.proxy.holds(first))

		n.c.Capture()
		n.captured(first)
		n.captured(second)
		require.NoError(t, n.c.Ready())
		assert.Empty(t, n.c.News())
	})
}

// TestGivenToNobody: a dialect whose rules of the other agent panic gives no pod away, and ends no agent.
func TestGivenToNobody(t *testing.T) {
	t.Parallel()
	n, uid := oneCaptured(t)
	n.kill()
	n.options = func(o *nodecontrol.Options) {
		mesh := o.Meshes.Known()[0]
		proxy := *mesh.NodeProxy
		proxy.Agents = map[string]dialect.OtherAgent{"other": {Rules: func(redirect.Redirect) ruleset.Ruleset { panic("boom") }}}
		mesh.NodeProxy = &proxy
		o.Meshes = dialect.SetOf(mesh)
	}
	n.start()
	n.captured(uid)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []status.Pod, 1)
	go func() {
		left, _ := n.c.Release(ctx, "other")
		done <- left
	}()
	n.eventually(uid, status.StateDrifted, "not-released")
	assert.Contains(t, n.state(uid).Detail, "make the rules of the agent other: its Rules panics: boom")
	differ, _ := n.rules(uid)
	assert.Empty(t, differ)
	cancel()
	assert.Len(t, <-done, 1)
	n.c.Capture()
	n.captured(uid)
}

// TestGivenAwayLater: what could not be given away is reported, and tried again; a pod that leaves the mesh meanwhile leaves it.
func TestGivenAwayLater(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	stays, leaves := n.pod(1), n.pod(2)
	n.pods.label("shop", "ambient")
	n.start()
	n.captured(stays)
	n.captured(leaves)
	paths := map[types.UID]string{}
	find := func(uid types.UID) {
		n.namespaces.mu.Lock()
		defer n.namespaces.mu.Unlock()
		n.namespaces.paths[uid] = paths[uid]
	}
	n.namespaces.mu.Lock()
	for _, uid := range []types.UID{stays, leaves} {
		paths[uid], n.namespaces.paths[uid] = n.namespaces.paths[uid], "/nowhere"
	}
	n.namespaces.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var left []status.Pod
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { left, err = n.c.Release(ctx, "istio-cni") })
	n.eventually(stays, status.StateDrifted, "not-released")
	n.eventually(leaves, status.StateDrifted, "not-released")
	n.pods.change(leaves, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
	// Once it is known to leave, no look of before can give it away any more.
	n.until("what fails is taking it out", func() bool { return !strings.HasPrefix(n.state(leaves).Detail, "find its network namespace") })
	find(leaves)
	n.outside(leaves)
	cancel()
	wg.Wait()
	require.NoError(t, err)
	require.Len(t, left, 1)
	assert.Contains(t, left[0].Detail, "find its network namespace")
	find(stays)
	left, err = n.c.Release(t.Context(), "istio-cni")
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, "enabled", n.pods.annotation(stays))
}

// TestReleaseUndone: captured again without a restart.
func TestReleaseUndone(t *testing.T) {
	t.Parallel()
	n, uid := oneCaptured(t)
	_, err := n.c.Release(t.Context(), "")
	require.NoError(t, err)
	n.outside(uid)
	assert.Contains(t, news.Warnings(n.c.News()), "ambient: the node's pods were released: none is captured until that is undone")
	n.c.Capture()
	n.captured(uid)
}

// half is a set of probes that cannot have one family.
type half struct{ *probes }

func (h half) Put(uid types.UID, addrs []netip.Addr) error {
	var skipped []netip.Addr
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		if a.Is6() {
			skipped = append(skipped, a)
		}
		return a.Is6()
	})
	if err := h.probes.Put(uid, addrs); err != nil || skipped == nil {
		return err
	}
	return &nodecontrol.UnexemptError{Addrs: skipped, Err: errors.New("the host has no IPv6")}
}

// TestUnexempt: an address that the host cannot exempt keeps no pod from being captured, and is no drift.
func TestUnexempt(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	both, only := n.pod(1), n.pod(2)
	n.pods.change(both, func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::5"}) })
	n.pods.change(only, func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "fd00::6"}} })
	n.options = func(o *nodecontrol.Options) { o.Probes = half{n.probes} }
	n.pods.label("shop", "ambient")
	n.start()
	n.captured(both)
	n.eventually(only, status.StateCaptured, "captured")
	n.probes.lost()
	n.until("mended", func() bool { return n.metric("drift_mended_total{kind=probes-missing}") > 0 })
	n.captured(both)
	for _, p := range n.c.Pods() {
		assert.Empty(t, p.Detail)
	}
}

// foreseeing is told of rounds.
type foreseeing struct {
	*namespaces
	told chan []nodecontrol.Sought
}

func (f foreseeing) Foresee(_ context.Context, pods []nodecontrol.Sought) {
	select {
	case f.told <- pods:
	default:
	}
}

// TestForesight: the store hears at once of all pods that are asked for, before each round, and of no others. It does not hear of one
// that somebody works on.
func TestForesight(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	in, also, out := n.pod(1), n.pod(2), n.pod(3)
	n.pods.change(out, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
	told := make(chan []nodecontrol.Sought, 1)
	n.options = func(o *nodecontrol.Options) { o.Namespaces = foreseeing{n.namespaces, told} }
	n.pods.label("shop", "ambient")
	n.start()
	for heard := 0; heard < 2; { // at the start, and in a round
		var uids []types.UID
		for _, s := range <-told {
			uids = append(uids, s.UID)
			assert.NotEmpty(t, s.Addrs)
		}
		assert.Subset(t, []types.UID{in, also}, uids)
		if len(uids) == 2 {
			heard++
		}
	}
}
