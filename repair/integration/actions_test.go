package integration

import (
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/repair"
)

// world is a namespace and a node of one test, with a well pod beside what it does.
type world struct {
	*admin
	s        *kubetest.Server
	ns, node string
}

func newWorld(t testing.TB) *world {
	s := kubetest.Shared(t)
	w := &world{admin: newAdmin(t, s), s: s}
	w.ns = w.Namespace(t)
	w.node = "node-" + w.ns
	w.make(t, "passed", "well-0")
	t.Cleanup(func() { assert.Nil(t, w.Pod(t, w.ns, "well-0").DeletionTimestamp, "a well pod was touched") })
	return w
}

func (w *world) make(t testing.TB, file, name string) *corev1.Pod {
	t.Helper()
	return w.Create(t, podFrom(t, file, w.ns, name, w.node))
}

// running makes a broken pod that counts for a disruption budget.
func (w *world) running(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	pod := podFrom(t, "crash-loop", w.ns, name, w.node)
	pod.Status.Phase = corev1.PodRunning
	return w.Create(t, pod)
}

func TestLabel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.make(t, "crash-loop", "before")
	ag := runAgent(t, w.s, w.node, func(o *repair.Options) { o.Action = "label" })
	after := w.make(t, "job-failed", "after")
	for _, pod := range []*corev1.Pod{before, after} {
		eventually(t, "labelled", func() bool {
			return w.Pod(t, w.ns, pod.Name).Labels[meshcni.Identity{}.Key("not-redirected")] == "true"
		})
		got := w.Pod(t, w.ns, pod.Name)
		assert.Equal(t, pod.UID, got.UID)
		assert.Equal(t, pod.Status.Phase, got.Status.Phase)
		assert.Equal(t, "web", got.Labels["app"])
	}
	eventually(t, "events", func() bool { return len(w.Events(t, w.ns)) == 2 })
	assert.Equal(t, map[string][]string{"before": {"MeshRepairLabelled"}, "after": {"MeshRepairLabelled"}}, w.Events(t, w.ns))
	assert.Equal(t, map[string]int{"labelled check-failed": 2}, ag.outcomes())
	well := podFrom(t, "recovered", w.ns, "before", w.node)
	well.Labels = w.Pod(t, w.ns, "before").Labels
	well.UID = before.UID
	w.SetStatus(t, well)
	eventually(t, "label taken off", func() bool {
		return w.Pod(t, w.ns, "before").Labels[meshcni.Identity{}.Key("not-redirected")] == ""
	})
}

func TestDelete(t *testing.T) {
	t.Parallel()
	t.Run("nothing in the way", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		pods := []*corev1.Pod{w.make(t, "crash-loop", "pending"), w.make(t, "job-failed", "job"), w.running(t, "running")}
		ag := runAgent(t, w.s, w.node, func(o *repair.Options) { o.Action = "delete" })
		for _, pod := range pods {
			eventually(t, pod.Name, func() bool { return w.away(w.ns, pod.Name, string(pod.UID)) })
		}
		eventually(t, "counted", func() bool { return ag.outcomes()["evicted check-failed"] == 3 })
		eventually(t, "events", func() bool { return len(w.Events(t, w.ns)) == 3 })
		assert.Equal(t, []string{"MeshRepairEvicted"}, w.Events(t, w.ns)["running"])
		assert.NotContains(t, w.s.Calls(t, ag.user), "delete pods")
	})
	t.Run("a disruption budget", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.Block(t, w.ns)
		pod := w.running(t, "web-0")
		ag := runAgent(t, w.s, w.node, func(o *repair.Options) { o.Action = "delete" })
		ag.outcome("blocked disruption-budget")
		assert.False(t, w.away(w.ns, "web-0", string(pod.UID)))
		eventually(t, "event", func() bool { return len(w.Events(t, w.ns)["web-0"]) == 1 })
		assert.Equal(t, []string{"MeshRepairBlocked"}, w.Events(t, w.ns)["web-0"])
		w.Unblock(t, w.ns)
		ag.outcome("evicted check-failed")
		assert.True(t, w.away(w.ns, "web-0", string(pod.UID)))
	})
	t.Run("by force", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.Block(t, w.ns)
		pod := w.running(t, "web-0")
		ag := runAgent(t, w.s, w.node, func(o *repair.Options) { o.Action, o.Force = "delete", true })
		ag.outcome("deleted check-failed")
		assert.True(t, w.away(w.ns, "web-0", string(pod.UID)))
	})
	t.Run("a forged owner", func(t *testing.T) {
		t.Parallel()
		w, attacker := newWorld(t), newWorld(t)
		forged := podFrom(t, "crash-loop", attacker.ns, "forged", w.node)
		own := podFrom(t, "crash-loop", w.ns, "web-1", w.node)
		require.Equal(t, own.OwnerReferences[0].UID, forged.OwnerReferences[0].UID)
		w.Create(t, forged)
		ag := runAgent(t, w.s, w.node, func(o *repair.Options) { o.Action = "delete" })
		ag.outcome("evicted check-failed")
		w.Create(t, own)
		eventually(t, "the victim's too", func() bool { return ag.outcomes()["evicted check-failed"] == 2 })
		assert.Zero(t, ag.outcomes()["held successor-broken"])
	})
}

// TestAnotherPodOfTheName: the pod is deleted and made anew under its name after
// it was diagnosed, once before it is read again and once after.
func TestAnotherPodOfTheName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action                repair.Action
		method, path, outcome string
		force                 bool
	}{
		"label, before it is read":  {"label", http.MethodGet, "/web-0", "replaced other-uid", false},
		"label, after it was read":  {"label", http.MethodPatch, "/web-0/status", "conflict conflict", false},
		"delete, before it is read": {"delete", http.MethodGet, "/web-0", "replaced other-uid", false},
		"delete, after it was read": {"delete", http.MethodPost, "/web-0/eviction", "conflict conflict", false},
		"force, after it was read":  {"delete", http.MethodDelete, "/web-0", "conflict conflict", true},
		"repair, before it is read": {"repair", http.MethodGet, "/web-0", "replaced other-uid", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			old := w.running(t, "web-0")
			if c.force {
				w.Block(t, w.ns)
			}
			ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
				o.Action, o.Force = c.action, c.force
				hooked(o, c.method, c.path, func(func() error) error {
					w.Remove(t, w.ns, "web-0")
					w.make(t, "passed", "web-0")
					return nil
				})
			})
			ag.outcome(c.outcome)
			now := w.Pod(t, w.ns, "web-0")
			assert.NotEqual(t, old.UID, now.UID)
			assert.Nil(t, now.DeletionTimestamp, "the new pod is not the old one")
			assert.NotContains(t, now.Labels, meshcni.Identity{}.Key("not-redirected"))
		})
	}
}

// TestConflict: the pod changes after it was read. It is read again then: still
// broken it goes, well it stays.
func TestConflict(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{"still broken": "just-failed", "well": "recovered"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pod := w.make(t, "crash-loop", "web-0")
			ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
				o.Action = "delete"
				hooked(o, http.MethodPost, "/web-0/eviction", func(func() error) error {
					next := podFrom(t, file, w.ns, "web-0", w.node)
					next.UID = pod.UID
					w.SetStatus(t, next)
					return nil
				})
			})
			ag.outcome("conflict conflict")
			if file == "just-failed" {
				ag.outcome("evicted check-failed")
				return
			}
			assert.False(t, w.away(w.ns, "web-0", string(pod.UID)))
		})
	}
}

func TestOutage(t *testing.T) {
	t.Parallel()
	t.Run("in the middle of an action", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		g := newGate(t, w.s)
		pod, cut := w.make(t, "crash-loop", "web-0"), make(chan struct{})
		ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
			o.Action, o.Config.Host = "delete", "https://"+g.address
			hooked(o, http.MethodPost, "/web-0/eviction", func(func() error) error {
				g.shut()
				close(cut)
				return nil
			})
		})
		<-cut
		eventually(t, "the failure is known", func() bool { return ag.outcomes()["failed error"] > 0 })
		assert.False(t, w.away(w.ns, "web-0", string(pod.UID)))
		meanwhile := podFrom(t, "crash-loop", w.ns, "meanwhile", w.node)
		meanwhile.OwnerReferences = nil // of the same owner it would be taken for a broken successor
		meanwhile = w.Create(t, meanwhile)
		require.NoError(t, g.open())
		eventually(t, "it goes on", func() bool { return w.away(w.ns, "web-0", string(pod.UID)) })
		eventually(t, "what broke meanwhile", func() bool { return w.away(w.ns, "meanwhile", string(meanwhile.UID)) })
		assert.NoError(t, ag.ctl.Ready())
	})
	t.Run("only the answer is lost", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		pod := w.make(t, "crash-loop", "web-0")
		ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
			o.Action = "delete"
			hooked(o, http.MethodPost, "/web-0/eviction", func(send func() error) error {
				return errors.Join(send(), errors.New("connection reset by peer"))
			})
		})
		eventually(t, "deleting", func() bool { return w.away(w.ns, "web-0", string(pod.UID)) })
		ag.outcome("failed error")
		assert.Equal(t, 1, w.s.Calls(t, ag.user)["create pods/eviction"], "seen to be done, so not done again")
	})
}

// TestWatchExpiry restarts the server while the controller cannot reach it, so
// that the watch cannot go on where it was.
func TestWatchExpiry(t *testing.T) {
	t.Parallel()
	s := kubetest.Own(t, servers)
	a := newAdmin(t, s)
	g := newGate(t, s)
	ns := a.Namespace(t)
	gone := a.Create(t, podFrom(t, "passed", ns, "gone", "node-1"))
	pod := a.Create(t, podFrom(t, "passed", ns, "web-0", "node-1"))
	ag := runAgent(t, s, "node-1", func(o *repair.Options) {
		o.Action, o.Config.Host = "label", "https://"+g.address
	})
	ag.ready()
	before := a.Pod(t, ns, "web-0").ResourceVersion
	g.shut()
	a.Remove(t, ns, gone.Name)
	broken := podFrom(t, "crash-loop", ns, "web-0", "node-1")
	broken.UID = pod.UID
	a.SetStatus(t, broken)
	s.StopAPI()
	require.NoError(t, s.StartAPI())
	var forgotten metav1.WatchEvent
	a.Do(t, http.MethodGet, "/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion="+before, nil, &forgotten)
	require.Equal(t, "ERROR", forgotten.Type, "%s", forgotten.Object.Raw)
	require.Contains(t, string(forgotten.Object.Raw), "too old resource version")
	require.NoError(t, g.open())
	ag.outcome("labelled check-failed")
	assert.NoError(t, ag.ctl.Ready())
}
