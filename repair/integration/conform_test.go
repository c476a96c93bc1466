package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
)

// TestConform runs one table on a real API server and on repairtest's cluster, so that what unit tests rely on is true.
func TestConform(t *testing.T) {
	t.Parallel()
	t.Run("API server", func(t *testing.T) {
		s := kubetest.Shared(t)
		config, err := s.Config(kubetest.AdminToken)
		require.NoError(t, err)
		conform(t, func(node string) cluster {
			client, err := api.New(meshcni.Identity{}, config, node)
			require.NoError(t, err)
			return client
		}, newAdmin(t, s))
	})
	t.Run("repairtest", func(t *testing.T) {
		c := repairtest.New()
		conform(t, func(node string) cluster { c.Node = node; return c }, &fakeAdmin{Cluster: c})
	})
}

// cluster is what a controller asks of an API server.
type cluster interface {
	nodepods.API

	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Label(ctx context.Context, pod *corev1.Pod, key, value string) (*corev1.Pod, error)
	Evict(ctx context.Context, pod *corev1.Pod) error
	Delete(ctx context.Context, pod *corev1.Pod) error
}

// clusterAdmin does what a cluster's users and kubelets do.
type clusterAdmin interface {
	// Namespace creates a namespace with a new name.
	Namespace(t testing.TB) string
	// Create creates the pod with its status.
	Create(t testing.TB, pod *corev1.Pod) *corev1.Pod
	// Touch changes the pod's resource version.
	Touch(t testing.TB, namespace, name string)
	// Remove deletes the pod at once.
	Remove(t testing.TB, namespace, name string)
	// Block sets a disruption budget in the namespace that forbids all evictions.
	Block(t testing.TB, namespace string)
}

func conform(t *testing.T, of func(node string) cluster, admin clusterAdmin) {
	t.Helper()
	t.Run("actions", func(t *testing.T) { conformActions(t, of("node-1"), admin) })
	t.Run("label", func(t *testing.T) { conformLabel(t, of("node-1"), admin) })
	t.Run("watch", func(t *testing.T) { conformWatch(t, of, admin) })
}

func conformActions(t *testing.T, c cluster, admin clusterAdmin) {
	const key = "meshcni.io/test"
	actions := map[string]func(context.Context, *corev1.Pod) error{
		"label": func(ctx context.Context, r *corev1.Pod) error {
			_, err := c.Label(ctx, r, key, "true")
			return err
		},
		"evict":  c.Evict,
		"delete": c.Delete,
	}
	none := func(error) bool { return false }
	for name, k := range map[string]struct {
		phase   corev1.PodPhase
		prepare func(t *testing.T, ns string, r *corev1.Pod)
		refused map[string]func(error) bool // by action; "" is all
	}{
		"as it was read":     {phase: corev1.PodRunning, prepare: func(*testing.T, string, *corev1.Pod) {}},
		"any state":          {phase: corev1.PodRunning, prepare: func(_ *testing.T, _ string, r *corev1.Pod) { r.ResourceVersion = "" }},
		"any state, changed": {phase: corev1.PodRunning, prepare: func(t *testing.T, ns string, r *corev1.Pod) { admin.Touch(t, ns, r.Name); r.ResourceVersion = "" }},
		"changed since": {phase: corev1.PodRunning, prepare: func(t *testing.T, ns string, r *corev1.Pod) {
			admin.Touch(t, ns, r.Name)
		}, refused: map[string]func(error) bool{"": apierrors.IsConflict}},
		"another pod of the name": {phase: corev1.PodRunning, prepare: func(t *testing.T, ns string, r *corev1.Pod) {
			admin.Remove(t, ns, r.Name)
			admin.Create(t, repairtest.Pod(ns, r.Name, "node-1", corev1.PodRunning))
			r.ResourceVersion = ""
		}, refused: map[string]func(error) bool{"": apierrors.IsConflict}},
		"gone": {phase: corev1.PodRunning, prepare: func(t *testing.T, ns string, r *corev1.Pod) {
			admin.Remove(t, ns, r.Name)
		}, refused: map[string]func(error) bool{"": apierrors.IsNotFound}},
		"budget": {phase: corev1.PodRunning, prepare: func(t *testing.T, ns string, _ *corev1.Pod) {
			admin.Block(t, ns)
		}, refused: map[string]func(error) bool{"evict": apierrors.IsTooManyRequests}},
		"budget, not started": {phase: corev1.PodPending, prepare: func(t *testing.T, ns string, _ *corev1.Pod) {
			admin.Block(t, ns)
		}},
		"failed pod": {phase: corev1.PodFailed, prepare: func(t *testing.T, ns string, _ *corev1.Pod) { admin.Block(t, ns) }},
	} {
		for action, do := range actions {
			t.Run(name+"/"+action, func(t *testing.T) {
				ns := admin.Namespace(t)
				made := admin.Create(t, repairtest.Pod(ns, "web-0", "node-1", k.phase))
				r := made.DeepCopy()
				k.prepare(t, ns, r)
				err := do(t.Context(), r)
				is := k.refused[action]
				if is == nil {
					is = k.refused[""]
				}
				if is == nil {
					is = none
				}
				now, errNow := c.Pod(t.Context(), ns, "web-0")
				if err != nil || k.refused[action] != nil || k.refused[""] != nil {
					assert.True(t, is(err), "%v", err)
					if !apierrors.IsNotFound(err) {
						require.NoError(t, errNow)
						assert.Nil(t, now.DeletionTimestamp, "nothing was done")
						assert.NotContains(t, now.Labels, key)
					}
					return
				}
				if action == "label" {
					require.NoError(t, errNow)
					assert.Equal(t, "true", now.Labels[key])
					assert.Equal(t, "web", now.Labels["app"])
					assert.Equal(t, made.Status.Phase, now.Status.Phase)
					return
				}
				assert.True(t, apierrors.IsNotFound(errNow) || errNow == nil && now.UID == r.UID && now.DeletionTimestamp != nil, "deleting or gone: %v", errNow)
			})
		}
	}
}

func conformLabel(t *testing.T, c cluster, admin clusterAdmin) {
	ns := admin.Namespace(t)
	pod := admin.Create(t, repairtest.Pod(ns, "web-0", "node-1", corev1.PodRunning))
	one, err := c.Label(t.Context(), pod, "meshcni.io/test", "true")
	require.NoError(t, err)
	assert.Equal(t, pod.UID, one.UID)
	assert.NotEqual(t, pod.ResourceVersion, one.ResourceVersion)
	again, err := c.Label(t.Context(), one, "meshcni.io/test", "true")
	require.NoError(t, err)
	assert.Equal(t, one.ResourceVersion, again.ResourceVersion, "nothing changes")
	off, err := c.Label(t.Context(), again, "meshcni.io/test", "")
	require.NoError(t, err)
	assert.NotContains(t, off.Labels, "meshcni.io/test")
	assert.Equal(t, "web", off.Labels["app"])
}

func conformWatch(t *testing.T, of func(node string) cluster, admin clusterAdmin) {
	ns := admin.Namespace(t)
	node := "node-" + ns
	c := of(node)
	admin.Create(t, repairtest.Pod(ns, "here-0", node, corev1.PodRunning))
	admin.Create(t, repairtest.Pod(ns, "there-0", "other-"+node, corev1.PodRunning))
	w, err := nodepods.New(nodepods.Options{API: c, Dialects: builtin.All()})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	defer func() { stop(); <-done }()
	names := func() (all []string) {
		for _, p := range w.Pods() {
			all = append(all, p.Name)
		}
		return all
	}
	has := func(name string, want func(*corev1.Pod) bool) func() bool {
		return func() bool {
			for _, p := range w.Pods() {
				if p.Name == name {
					return want(p)
				}
			}
			return want(nil)
		}
	}
	eventually := func(what string, f func() bool) {
		t.Helper()
		require.Eventually(t, f, netnstest.Patience, time.Millisecond, what)
	}
	eventually("listed", w.Synced)
	assert.Equal(t, []string{"here-0"}, names())

	made := admin.Create(t, repairtest.Pod(ns, "here-1", node, corev1.PodRunning))
	admin.Create(t, repairtest.Pod(ns, "there-1", "other-"+node, corev1.PodRunning))
	eventually("added", has("here-1", func(p *corev1.Pod) bool { return p != nil && p.UID == made.UID }))
	anyState := made.DeepCopy()
	anyState.ResourceVersion = ""
	_, err = c.Label(t.Context(), anyState, "meshcni.io/test", "true")
	require.NoError(t, err)
	eventually("changed", has("here-1", func(p *corev1.Pod) bool { return p != nil && p.Labels["meshcni.io/test"] == "true" }))
	require.NoError(t, c.Evict(t.Context(), anyState))
	eventually("deleting", has("here-1", func(p *corev1.Pod) bool { return p == nil || p.DeletionTimestamp != nil }))
	admin.Remove(t, ns, "here-1")
	eventually("gone", has("here-1", func(p *corev1.Pod) bool { return p == nil }))
	assert.Equal(t, []string{"here-0"}, names(), "other nodes' pods are not held")
}

// fakeAdmin is a clusterAdmin for the cluster in memory.
type fakeAdmin struct {
	*repairtest.Cluster

	n int
}

func (a *fakeAdmin) Namespace(testing.TB) string {
	a.n++
	return fmt.Sprintf("test-%d", a.n)
}

func (a *fakeAdmin) Create(_ testing.TB, pod *corev1.Pod) *corev1.Pod { return a.Set(pod) }

func (a *fakeAdmin) Touch(t testing.TB, namespace, name string) {
	t.Helper()
	pod, err := a.Pod(t.Context(), namespace, name)
	require.NoError(t, err)
	pod.Annotations = map[string]string{"meshcni.io/touched": pod.ResourceVersion}
	a.Set(pod)
}

func (a *fakeAdmin) Remove(_ testing.TB, namespace, name string) { a.Gone(namespace, name) }

func (a *fakeAdmin) Block(_ testing.TB, namespace string) { a.Cluster.Block(namespace, true) }
