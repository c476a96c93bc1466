package nodecontrol_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/budget"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// node is a node with pods in real network namespaces, a proxy that listens in them, and a controller.
type node struct {
	t          testing.TB
	backend    ruleset.Backend
	pods       *pods
	proxy      *proxy
	probes     *probes
	namespaces *namespaces
	records    attachment.Store
	events     *record.FakeRecorder
	netns      map[types.UID]*netnsexec.NetNS
	options    func(*nodecontrol.Options)
	made       func(*nodecontrol.Controller) // before it runs

	c    *nodecontrol.Controller
	stop func()
}

func newNode(t testing.TB, backend ruleset.Backend) *node {
	netnstest.Require(t, netnstest.Root)
	n := &node{
		t: t, backend: backend,
		pods:       &pods{pods: map[types.UID]*corev1.Pod{}, namespaces: map[string]*corev1.Namespace{}, subs: map[int]func(types.UID){}},
		proxy:      &proxy{has: map[types.UID]*held{}},
		probes:     &probes{set: map[netip.Addr]types.UID{}},
		namespaces: &namespaces{paths: map[types.UID]string{}, noted: map[types.UID]string{}, sysctls: map[string]string{}},
		records:    attachment.Open(t.TempDir()),
		events:     record.NewFakeRecorder(1000),
		netns:      map[types.UID]*netnsexec.NetNS{},
	}
	n.pods.label("shop", "")
	t.Cleanup(func() {
		n.kill()
		n.proxy.set(func(p *proxy) { p.down = errFault })
	})
	return n
}

// pod makes a pod with a namespace of its own, which runs.
func (n *node) pod(i int) types.UID {
	uid := uidN(i)
	n.sandbox(uid)
	addr := fmt.Sprintf("10.244.%d.%d", i/250, i%250+2)
	n.pods.mu.Lock()
	n.pods.pods[uid] = makePod(uid, "shop", fmt.Sprintf("cart-%d", i), addr)
	n.pods.mu.Unlock()
	return uid
}

// oneCaptured is a node with one pod, which runs and is captured.
func oneCaptured(t *testing.T) (*node, types.UID) {
	t.Helper()
	n := newNode(t, ruleset.BackendNftables)
	uid := n.pod(1)
	n.pods.label("shop", "ambient")
	n.start()
	n.captured(uid)
	return n, uid
}

// sandbox gives a pod a new namespace.
func (n *node) sandbox(uid types.UID) *netnsexec.NetNS {
	ns := netnstest.New(n.t)
	n.netns[uid] = ns
	n.namespaces.mu.Lock()
	n.namespaces.paths[uid] = ns.Path()
	n.namespaces.mu.Unlock()
	return ns
}

// inWorld gives a pod the namespace of a world, and the address that it has there.
func (n *node) inWorld(uid types.UID, w *netnstest.World) {
	n.netns[uid] = w.Pod
	n.pods.change(uid, func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}} })
}

// start starts a controller without memory.
func (n *node) start() {
	o := nodecontrol.Options{
		Meshes: dialect.SetOf(ambient.New(ambient.Options{ExcludedNamespaces: []string{"kube-system"}})), Apply: apply.Options{Backend: n.backend},
		Pods: n.pods, Namespaces: n.namespaces, Proxy: n.proxy, Probes: n.probes, Status: n.pods, Inventory: inventory.New(inventory.Options{Records: n.records}),
		VerifyInterval: 50 * time.Millisecond, ListenTimeout: 300 * time.Millisecond, DrainTimeout: -1, Keeper: keeper.New(n.pods),
		Events: n.events,
	}
	o.Keeper.Limit(budget.Unlimited)
	if n.options != nil {
		n.options(&o)
	}
	n.pods.mu.Lock()
	n.pods.meshes = o.Meshes
	n.pods.mu.Unlock()
	c, err := nodecontrol.New(o)
	require.NoError(n.t, err)
	if n.made != nil {
		n.made(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(n.t, c.Run(ctx)) })
	n.c, n.stop = c, func() { cancel(); wg.Wait() }
}

// kill ends the controller and all that it remembers.
func (n *node) kill() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

func (n *node) state(uid types.UID) status.Pod {
	for _, p := range n.c.Pods() {
		if p.UID == string(uid) {
			return p
		}
	}
	return status.Pod{}
}

// eventually waits for a state.
func (n *node) eventually(uid types.UID, state status.State, reason status.Code) {
	n.t.Helper()
	waittest.Eventually(n.t, fmt.Sprintf("%s is %s %s", uid, state, reason), func() error {
		if s := n.state(uid); s.State != state || reason != "" && s.Reason != reason {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
}

func (n *node) until(what string, is func() bool) {
	n.t.Helper()
	waittest.Eventually(n.t, what, func() error {
		if !is() {
			return fmt.Errorf("not so; the pods are %+v", n.c.Pods())
		}
		return nil
	})
}

func (n *node) backendOf(ns *netnsexec.NetNS) apply.Backend {
	b, err := apply.Choose(context.Background(), ns, apply.Options{Backend: n.backend})
	require.NoError(n.t, err)
	return b
}

// rules returns what differs from the rules that the pod should have, and from none.
func (n *node) rules(uid types.UID) (fromWanted, fromNone []ruleset.Difference) {
	rs := rulesOf(n.t, n.pods.get(uid))
	b := n.backendOf(n.netns[uid])
	fromWanted, err := b.Check(context.Background(), rs)
	require.NoError(n.t, err)
	fromNone, err = b.Check(context.Background(), rs.Owner().EmptyRuleset())
	require.NoError(n.t, err)
	return fromWanted, fromNone
}

func rulesOf(t testing.TB, pod *corev1.Pod) ruleset.Ruleset {
	pod = pod.DeepCopy()
	pod.Annotations = nil
	result, err := ambient.New(ambient.Options{}).Redirect(pod, nil, []netip.Addr{netip.MustParseAddr("10.244.0.1")})
	require.NoError(t, err)
	return result.Redirect.MustRuleset()
}

func (n *node) flush(uid types.UID) {
	b := n.backendOf(n.netns[uid])
	require.NoError(n.t, b.Remove(context.Background(), ambient.DefaultRedirect().Names.Owner()))
}

func (n *node) captured(uid types.UID) {
	n.t.Helper()
	n.eventually(uid, status.StateCaptured, "captured")
	n.until("annotated", func() bool { return n.pods.annotation(uid) == "enabled" })
	differ, _ := n.rules(uid)
	assert.Empty(n.t, differ)
	assert.True(n.t, n.proxy.holds(uid))
	entries, _ := n.probes.Entries()
	assert.Contains(n.t, entries, netip.MustParseAddr(n.pods.get(uid).Status.PodIPs[0].IP))
}

// joined takes the events of so many pods that joined, which come last: nobody works on the pods any more.
func (n *node) joined(pods int) {
	n.t.Helper()
	for range pods {
		assert.Contains(n.t, <-n.events.Events, "Normal MeshEnrolled")
	}
}

func (n *node) outside(uid types.UID) {
	n.t.Helper()
	n.eventually(uid, status.StateOutside, "")
	assert.Empty(n.t, n.pods.annotation(uid))
	_, left := n.rules(uid)
	assert.Empty(n.t, left)
	assert.False(n.t, n.proxy.holds(uid))
	entries, _ := n.probes.Entries()
	for addr, owner := range entries {
		assert.NotEqual(n.t, uid, owner, addr)
	}
	assert.NotContains(n.t, n.namespaces.Known(), uid)
}

var backends = []ruleset.Backend{ruleset.BackendNftables, ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy}

func eachBackend(t *testing.T, test func(t *testing.T, n *node)) {
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			if b != ruleset.BackendNftables {
				netnstest.Require(t, netnstest.Binary(string(b)+"-restore"))
			}
			test(t, newNode(t, b))
		})
	}
}

// TestRunningPodsJoinAndLeave: with the label of their namespace, and nothing of it is left.
func TestRunningPodsJoinAndLeave(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		a, b := n.pod(1), n.pod(2)
		n.pods.change(b, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
		id := attachment.ID{Network: "k8s", ContainerID: "c1", IfName: "eth0"}
		ns := n.netns[a].ID()
		require.NoError(t, n.records.Write(attachment.Record{
			ID: id, NetNS: attachment.NetNS{Dev: ns.Dev, Ino: ns.Ino}, Pod: status.ID{Namespace: "shop", Name: "cart-1", UID: string(a)}, Reason: "not-enabled", By: "ADD",
		}))
		n.start()
		n.eventually(a, status.StateOutside, "not-enabled")
		assert.Zero(t, n.proxy.count())
		n.pods.label("shop", "ambient")
		n.captured(a)
		n.eventually(b, status.StateOutside, "not-enabled")
		r, err := n.records.Read(id)
		require.NoError(t, err)
		assert.True(t, r.Selected)
		assert.Equal(t, n.backend, r.Backend)
		assert.Contains(t, <-n.events.Events, "Normal MeshEnrolled")

		n.pods.label("shop", "")
		n.outside(a)
		assert.Contains(t, <-n.events.Events, "Normal MeshReleased")
		r, err = n.records.Read(id)
		require.NoError(t, err)
		assert.False(t, r.Selected, "CHECK does not miss the rules")
		assert.Empty(t, r.InForce())
		assert.False(t, n.proxy.holds(b))
	})
}

// TestDriftIsMended: whatever goes missing in a captured pod comes back.
func TestDriftIsMended(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, n *node) {
		uid := n.pod(1)
		n.pods.label("shop", "ambient")
		n.start()
		n.captured(uid)
		n.flush(uid)
		n.until("rules", func() bool { differ, _ := n.rules(uid); return len(differ) == 0 })
		n.captured(uid)

		n.probes.lost()
		n.until("the probes' entry", func() bool { e, _ := n.probes.Entries(); return len(e) == 1 })

		require.NoError(t, n.proxy.Remove(t.Context(), uid)) // a proxy that forgot it
		n.until("the listeners", func() bool { return n.proxy.holds(uid) })
		n.captured(uid)

		for _, lie := range []string{"", "pending", "nonsense"} {
			n.pods.change(uid, func(p *corev1.Pod) { p.Annotations = map[string]string{"ambient.istio.io/redirection": lie} })
			n.until("the annotation", func() bool { return n.pods.annotation(uid) == "enabled" })
		}

		// The sandbox is another one, as after a reboot.
		n.sandbox(uid)
		n.until("rules in the new namespace", func() bool { differ, _ := n.rules(uid); return len(differ) == 0 })
		n.captured(uid)
		assert.Equal(t, n.netns[uid].ID(), n.proxy.in(uid))
	})
}

// TestAnnotationThatLies: of a pod that says it is enrolled and has neither rules nor listeners, as after a reboot.
func TestAnnotationThatLies(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	in, out, forged := n.pod(1), n.pod(2), n.pod(3)
	n.pods.label("shop", "ambient")
	says := func(p *corev1.Pod) { p.Annotations = map[string]string{"ambient.istio.io/redirection": "enabled"} }
	n.pods.change(in, says)
	for _, uid := range []types.UID{out, forged} {
		n.pods.change(uid, func(p *corev1.Pod) {
			says(p)
			p.Labels = map[string]string{"istio.io/dataplane-mode": "none"}
		})
	}
	n.proxy.set(func(p *proxy) { p.down = errors.New("no proxy is connected") })
	n.start()
	n.eventually(in, status.StateWaiting, "no-proxy")
	assert.Equal(t, "enabled", n.pods.annotation(in), "peers are not told to send plaintext")
	n.kill()
	n.made = func(c *nodecontrol.Controller) { c.DeafAfter(0) }
	n.start()
	n.until("it is taken back if that lasts", func() bool { return n.pods.annotation(in) == "" })
	n.eventually(out, status.StateOutside, "not-enabled")
	assert.Empty(t, n.pods.annotation(out))
	_, none := n.rules(in)
	assert.Empty(t, none, "no rules lead to nobody")

	n.proxy.set(func(p *proxy) { p.down = nil })
	n.c.ProxyChanged()
	n.captured(in)
}

// asking is a [nodecontrol.Status] that asks for the pod's state when it is to say that the pod is enrolled.
type asking struct {
	nodecontrol.Status

	n     *node
	asked chan status.Pod
}

func (a asking) Annotate(ctx context.Context, pod *corev1.Pod, key, value string) error {
	if value == "enabled" {
		a.asked <- a.n.state(pod.UID)
	}
	return a.Status.Annotate(ctx, pod, key, value)
}

// TestAnnotationIsNotAhead: whoever has read that a pod is enrolled does not hear from the agent that it is outside.
func TestAnnotationIsNotAhead(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	asked := make(chan status.Pod, 1)
	n.options = func(o *nodecontrol.Options) { o.Status = asking{n.pods, n, asked} }
	uid := n.pod(1)
	n.start()
	n.eventually(uid, status.StateOutside, "not-enabled")
	n.pods.label("shop", "ambient")
	s := <-asked
	n.captured(uid)
	is := n.state(uid)
	assert.Equal(t, is, s, "and since then")
	assert.Equal(t, []string{"ambient", "captured", "captured", "nftables"}, []string{s.Dialect, string(s.State), string(s.Reason), s.Backend})
	assert.Contains(t, <-n.events.Events, "Normal MeshEnrolled")
}
