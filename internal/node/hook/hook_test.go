package hook

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/nri"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/plugin/plugintest"
	"github.com/meshcni/meshcni/status"
)

// world is a hook with a runtime directory, a watch and an API server that it may ask.
type world struct {
	*Hook
	dir   string
	api   *plugintest.Pods
	watch func(status.ID) (agentsock.Pod, error)
	asked atomic.Int32 // of the watch
	held  []string
}

func newWorld(t *testing.T, mode Mode, pods ...*corev1.Pod) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), api: plugintest.NewPods(pods...)}
	w.Hook = New(Options{
		Inventory: inventory.New(inventory.Options{Records: attachment.Open(w.dir)}),
		Socket:    "/nowhere", Mode: mode, Log: slog.New(slog.DiscardHandler),
		Plugin: plugin.Plugin{Dialects: []dialect.Dialect{istio.New()}, OpenPods: w.api.Open},
		Config: func() netconf.Config {
			return netconf.Config{Type: "meshcni", RunDir: w.dir, Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system"}}}
		},
		Pod: func(_ context.Context, id status.ID) (agentsock.Pod, error) {
			w.asked.Add(1)
			if w.watch == nil {
				return agentsock.Pod{}, agentsock.ErrUnknown
			}
			return w.watch(id)
		},
		Attach: func(_ context.Context, _ agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
			return agentsock.Attached{}, errors.Join(agentsock.ErrUnsupported, ns.Close())
		},
		Detach: func(context.Context, attachment.ID) error { return agentsock.ErrUnsupported },
		Held:   func(id status.ID, why string) { w.held = append(w.held, id.Name+": "+why) },
	})
	w.ctx, w.attempt = t.Context(), time.Second
	t.Cleanup(w.working.Wait)
	return w
}

func meshed(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u-1", Annotations: map[string]string{istio.StatusAnnotation: "{}"}}}
	p.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

// said is the pod as the runtime names it, with a file that stands for its namespace.
func said(t *testing.T, p *corev1.Pod) nri.Pod {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	return nri.Pod{
		ID: "c0ffee", Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Annotations: p.Annotations, Network: nri.NetworkOwn, NetNS: path,
		Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3")},
	}
}

// TestPolicy: what becomes of a pod's container where the hook may not capture it, and who was asked.
func TestPolicy(t *testing.T) {
	record := func(t *testing.T, w *world, p nri.Pod, selected bool) {
		ns, _, err := netnsOf(p.NetNS)
		require.NoError(t, err)
		r := attachment.Record{
			ID: attachment.ID{Network: "k8s", ContainerID: p.ID, IfName: "eth0"}, NetNS: attachment.NetNS{Path: p.NetNS, Dev: ns.Dev, Ino: ns.Ino},
			Selected: selected, Reason: "x", Backend: "nftables",
		}
		require.NoError(t, attachment.Open(w.dir).Write(r))
	}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		before  func(*testing.T, *world, *nri.Pod)
		refused string // empty: its container is made
		asked   bool
	}{
		"captured by ADD":    {pod: meshed("a"), before: func(t *testing.T, w *world, p *nri.Pod) { record(t, w, *p, true) }},
		"passed over by ADD": {pod: meshed("a"), before: func(t *testing.T, w *world, p *nri.Pod) { record(t, w, *p, false) }},
		"another sandbox's record": {pod: meshed("a"), refused: "redirection", asked: true, before: func(t *testing.T, w *world, p *nri.Pod) {
			record(t, w, *p, true)
			p.ID = "decaf"
		}},
		"another namespace's record": {pod: meshed("a"), refused: "redirection", asked: true, before: func(t *testing.T, w *world, p *nri.Pod) {
			record(t, w, *p, true)
			p.NetNS = said(t, meshed("b")).NetNS
		}},
		"on the node's network":       {pod: meshed("a"), before: func(_ *testing.T, _ *world, p *nri.Pod) { p.Network, p.NetNS = nri.NetworkHost, "" }},
		"in the node's own namespace": {pod: meshed("a"), before: func(_ *testing.T, _ *world, p *nri.Pod) { p.NetNS = "/proc/self/ns/net" }},
		"excluded":                    {pod: meshed("a"), before: func(_ *testing.T, _ *world, p *nri.Pod) { p.Namespace = "kube-system" }},
		"ruled out by the runtime's annotations": {pod: meshed("a"), before: func(_ *testing.T, _ *world, p *nri.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		}},
		"in the mesh":                    {pod: meshed("a"), refused: "redirection", asked: true},
		"the runtime says nothing of it": {pod: meshed("a"), refused: "redirection", asked: true, before: func(_ *testing.T, _ *world, p *nri.Pod) { p.Annotations = nil }},
		"refused by its mesh": {
			pod: meshed("a", "traffic.sidecar.istio.io/includeInboundPorts", "many"), refused: "includeInboundPorts", asked: true,
		},
		"another pod of that name": {pod: meshed("a"), refused: "another pod of the same name", asked: true, before: func(_ *testing.T, _ *world, p *nri.Pod) { p.UID = "u-2" }},
		"captured by ADD, in a namespace that the agent does not see": {pod: meshed("a"), before: func(t *testing.T, w *world, p *nri.Pod) {
			record(t, w, *p, true)
			require.NoError(t, os.Remove(p.NetNS))
		}},
		"another one that the agent does not see": {pod: meshed("a"), refused: "redirection", asked: true, before: func(t *testing.T, w *world, p *nri.Pod) {
			record(t, w, *p, true)
			p.NetNS += "2"
		}},
		"captured by ADD, and run by a sandboxed handler": {pod: meshed("a"), refused: `handler "kata-qemu"`, before: func(t *testing.T, w *world, p *nri.Pod) {
			record(t, w, *p, true)
			p.Handler = "kata-qemu"
		}},
		"passed over by ADD, and run by a sandboxed handler": {pod: meshed("a"), before: func(t *testing.T, w *world, p *nri.Pod) {
			record(t, w, *p, false)
			p.Handler = "kata-qemu"
		}},
		"excluded, and run by a sandboxed handler": {pod: meshed("a"), before: func(_ *testing.T, _ *world, p *nri.Pod) { p.Namespace, p.Handler = "kube-system", "runsc" }},
		"no namespace is said":                     {pod: meshed("a"), refused: "which network namespace", before: func(_ *testing.T, _ *world, p *nri.Pod) { p.NetNS = "" }},
		"a name that says more": {pod: meshed("a"), refused: "no names of objects", before: func(_ *testing.T, _ *world, p *nri.Pod) {
			p.Name = "a;K8S_POD_NAMESPACE=kube-system"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Gate, c.pod)
			p := said(t, c.pod)
			if c.before != nil {
				c.before(t, w, &p)
			}
			w.client = nri.New(nri.Options{}) // with no connection, so no patience of the runtime
			err := w.settle(t.Context(), p, time.Minute)
			if c.refused == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.refused)
			}
			assert.Equal(t, c.asked, int(w.asked.Load())+w.api.Calls() > 0, "who was asked: watch %d, API server %d", w.asked.Load(), w.api.Calls())
		})
	}
}

// The node's watch has most pods; the API server is asked for others alone.
func TestWatchFirst(t *testing.T) {
	pod := meshed("a")
	pod.Annotations = map[string]string{}
	w := newWorld(t, Gate)
	w.watch = func(status.ID) (agentsock.Pod, error) { return agentsock.Pod{Pod: pod}, nil }
	p := said(t, pod)
	p.Annotations = nil
	require.NoError(t, w.settle(t.Context(), p, time.Minute))
	assert.Equal(t, []int{1, 0}, []int{int(w.asked.Load()), w.api.Calls()})
	require.NoError(t, w.settle(t.Context(), p, time.Minute))
	assert.EqualValues(t, 1, w.asked.Load(), "it is settled")
}

// A held pod goes on once another has captured it; people are told of each reason once.
func TestHeldPodGoesOn(t *testing.T) {
	pod := meshed("a")
	w := newWorld(t, Gate, pod)
	p := said(t, pod)
	for range 3 {
		require.Error(t, w.settle(t.Context(), p, time.Minute))
	}
	waittest.Eventually(t, "the pod is told of", func() error {
		err := w.CreateContainer(t.Context(), p)
		w.working.Wait()
		if len(w.held) == 0 || err == nil {
			return errors.New("not yet")
		}
		return nil
	})
	ns, _, err := netnsOf(p.NetNS)
	require.NoError(t, err)
	require.NoError(t, attachment.Open(w.dir).Write(attachment.Record{
		ID: attachment.ID{Network: "k8s", ContainerID: p.ID, IfName: "eth0"}, NetNS: attachment.NetNS{Path: p.NetNS, Dev: ns.Dev, Ino: ns.Ino}, Reason: "x",
	}))
	require.NoError(t, w.settle(t.Context(), p, time.Minute))
	for _, text := range w.held {
		assert.Equal(t, 1, strings.Count(strings.Join(w.held, "\n"), text))
	}
}

// What the runtime does not name any more has no record; pods that ran before are left to repair, and the others are seen to.
func TestSynchronize(t *testing.T) {
	pod := meshed("a")
	w := newWorld(t, Gate, pod)
	store := attachment.Open(w.dir)
	gone := attachment.Record{ID: attachment.ID{Network: "meshcni.nri", ContainerID: "gone", IfName: ifName}, Reason: "x"}
	require.NoError(t, store.Write(gone))
	p, ran := said(t, pod), said(t, pod)
	ran.ID, ran.Ran = "decaf", true
	later, record := said(t, pod), gone // the runtime has told of it since it listed its pods, here or to the other process of ours
	later.ID, record.ContainerID = "later", "later"
	since := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(store.Dir, w.network()+"@gone@"+ifName+".json"), since, since.Add(-time.Second)))
	require.NoError(t, store.Write(record))
	w.sandboxes[later.ID] = &sandbox{pod: later, at: since.Add(time.Second), settled: true}
	w.sandboxes["gone"] = &sandbox{pod: nri.Pod{ID: "gone"}, at: since.Add(-time.Second)}
	w.Synchronize(t.Context(), []nri.Pod{p, ran}, since)
	w.working.Wait()
	_, err := store.Read(record.ID)
	require.NoError(t, err)
	assert.Len(t, w.Pods(), 3)
	w.RemovePodSandbox(later)
	w.working.Wait()
	_, err = store.Read(gone.ID)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, w.settle(t.Context(), ran, time.Minute), "its containers may be made again")
	assert.Len(t, w.Pods(), 2)
	rows := w.Rows()
	require.Len(t, rows, 2, "the runtime's word")
	ns, _, err := netnsOf(p.NetNS)
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(rows, func(r inventory.Row) bool {
		return r.ContainerID == p.ID && r.Pod == id(p) && r.NetNS.Is(ns) && slices.Equal(r.Addrs, p.Addrs)
	}))
	assert.Equal(t, 1, w.api.Calls())
	w.RemovePodSandbox(p)
	w.Synchronize(t.Context(), nil, time.Now())
	assert.Empty(t, w.Pods())
}

func TestMode(t *testing.T) {
	there := filepath.Join(t.TempDir(), "nri.sock")
	assert.Equal(t, Off, Auto.Resolve(there))
	require.NoError(t, os.WriteFile(there, nil, 0o600))
	assert.Contains(t, []Mode{Gate, Capture}, Auto.Resolve(there))
	assert.Equal(t, Gate, Gate.Resolve("/nowhere"))
	var m Mode
	require.ErrorContains(t, m.UnmarshalText([]byte("on")), "not one of auto, off, gate and capture")
	require.NoError(t, m.UnmarshalText([]byte("gate")))
	assert.Equal(t, Gate, m)
}

// The runtime has one lock for all pods. An API server that does not answer costs the first pod a wait, and the others next to none; all are held.
func TestWaitsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Gate)
		ctx, cancel := context.WithCancel(t.Context())
		w.ctx = ctx
		w.watch = func(status.ID) (agentsock.Pod, error) {
			<-ctx.Done()
			return agentsock.Pod{}, ctx.Err()
		}
		var took []time.Duration
		for i := range 110 {
			p := said(t, meshed("a"))
			p.ID = strconv.Itoa(i)
			for range 2 { // as a sandbox, and for its first container
				began := time.Now()
				assert.ErrorIs(t, w.within(t.Context(), p, 2*time.Second), errUndecided)
				took = append(took, time.Since(began))
			}
		}
		assert.Equal(t, maxWait, took[0])
		slices.Sort(took)
		assert.Less(t, took[len(took)*99/100-1], 150*time.Millisecond)
		cancel()
		w.working.Wait()
	})
}

// Pods that may cost much memory are dealt with a few at a time, and keep no other pod waiting.
func TestLargePodsTakeTurns(t *testing.T) {
	large := meshed("a", "long", strings.Repeat("x", largePod))
	w := newWorld(t, Gate, meshed("b"))
	for range largeAtOnce {
		w.large <- struct{}{}
	}
	w.watch = func(id status.ID) (agentsock.Pod, error) {
		pod := meshed(id.Name)
		pod.Annotations = nil
		return agentsock.Pod{Pod: pod}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.capture(ctx, said(t, large))
		ended <- err
	}()
	_, err := w.capture(t.Context(), said(t, meshed("b")))
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-ended, errUndecided)
	<-w.large
	_, err = w.capture(t.Context(), said(t, large))
	require.NoError(t, err)
}
