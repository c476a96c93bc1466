package repair_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
	"github.com/meshcni/meshcni/selection"
)

func TestEachAction(t *testing.T) {
	for name, c := range map[string]struct {
		config   func(*bench, *repair.Options)
		pods     []*corev1.Pod
		requests []string
		outcomes map[string]int
		events   []string
	}{
		"none reports": {
			config: action(repair.ActionNone), pods: []*corev1.Pod{named(t, "crash-loop", "a")},
			outcomes: map[string]int{}, events: []string{"Warning MeshRedirectionMissing"},
		},
		"label": {
			config: action(repair.ActionLabel), pods: []*corev1.Pod{named(t, "crash-loop", "a")},
			requests: []string{"get default/a", "label default/a"},
			outcomes: map[string]int{"labelled check-failed": 1}, events: []string{"Warning MeshRepairLabelled"},
		},
		"labelled already": {config: action(repair.ActionLabel), pods: []*corev1.Pod{named(t, "labelled", "a")}, outcomes: map[string]int{}},
		"label is taken off a pod that got well": {
			config: action(repair.ActionLabel), pods: []*corev1.Pod{with(named(t, "recovered", "a"), func(p *corev1.Pod) {
				p.Labels[meshcni.Identity{}.Key("not-redirected")] = "true"
			})},
			requests: []string{"get default/a", "label default/a"},
			outcomes: map[string]int{"unlabelled recovered": 1}, events: []string{"Normal MeshRepairUnlabelled"},
		},
		"delete": {
			config: action(repair.ActionDelete), pods: []*corev1.Pod{named(t, "crash-loop", "a"), named(t, "job-failed", "job")},
			requests: []string{"evict default/a", "evict default/job", "get default/a", "get default/a", "get default/job", "get default/job"},
			outcomes: map[string]int{"evicted check-failed": 2}, events: []string{"Warning MeshRepairEvicted", "Warning MeshRepairEvicted"},
		},
		"delete, a label from before means nothing": {
			config: action(repair.ActionDelete), pods: []*corev1.Pod{named(t, "labelled", "a")},
			requests: []string{"evict default/a", "get default/a", "get default/a"},
			outcomes: map[string]int{"evicted check-failed": 1}, events: []string{"Warning MeshRepairEvicted"},
		},
		"delete, budget in the way": {
			config:   func(b *bench, c *repair.Options) { c.Action = repair.ActionDelete; b.cluster.Block("default", true) },
			pods:     []*corev1.Pod{with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
			requests: []string{"evict default/a", "get default/a"},
			outcomes: map[string]int{"blocked disruption-budget": 1}, events: []string{"Warning MeshRepairBlocked"},
		},
		"delete by force, budget in the way": {
			config: func(b *bench, c *repair.Options) {
				c.Action, c.Force = repair.ActionDelete, true
				b.cluster.Block("default", true)
			},
			pods:     []*corev1.Pod{with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
			requests: []string{"delete default/a", "evict default/a", "get default/a", "get default/a"},
			outcomes: map[string]int{"deleted check-failed": 1}, events: []string{"Warning MeshRepairDeleted"},
		},
		"delete spares the unmanaged": {
			config:   func(_ *bench, c *repair.Options) { c.Action, c.SpareUnmanaged = repair.ActionDelete, true },
			pods:     []*corev1.Pod{with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.OwnerReferences = nil })},
			outcomes: map[string]int{"spared unmanaged": 1}, events: []string{"Warning MeshRepairSpared"},
		},
		"repair": {
			config: action(repair.ActionRepair), pods: []*corev1.Pod{named(t, "crash-loop", "a")},
			requests: []string{"get default/a"},
			outcomes: map[string]int{"repaired check-failed": 1}, events: []string{"Normal MeshRepairRepaired"},
		},
		"repair comes too late": {
			config: action(repair.ActionRepair), pods: []*corev1.Pod{named(t, "job-failed", "a")},
			outcomes: map[string]int{"too-late check-failed": 1}, events: []string{"Warning MeshRepairTooLate"},
		},
		"nobody else is touched": {
			config: action(repair.ActionDelete), pods: []*corev1.Pod{
				named(t, "passed", "a"), named(t, "recovered", "b"), named(t, "deleting", "c"), named(t, "mirror", "d"), named(t, "no-check", "e"),
				named(t, "running-again", "f"), named(t, "host-network", "g"), named(t, "other-exit-code", "h"), named(t, "job-succeeded", "i"),
				with(named(t, "crash-loop", "elsewhere"), func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }),
				with(named(t, "crash-loop", "excluded"), func(p *corev1.Pod) { p.Namespace = "kube-system" }),
			}, outcomes: map[string]int{},
		},
		"an excluded namespace, by its labels, is left alone": {
			config: excludingOff(repair.ActionDelete), pods: []*corev1.Pod{named(t, "crash-loop", "a")},
			outcomes: map[string]int{},
		},
		"and not even reported": {
			config: excludingOff(repair.ActionNone), pods: []*corev1.Pod{named(t, "crash-loop", "a")},
			outcomes: map[string]int{},
		},
		"another is not": {
			config: excludingOff(repair.ActionLabel), pods: []*corev1.Pod{with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.Namespace = "shop" })},
			requests: []string{"get shop/a", "label shop/a"},
			outcomes: map[string]int{"labelled check-failed": 1}, events: []string{"Warning MeshRepairLabelled"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, c.config, c.pods...)
				got := b.requests()
				slices.Sort(got)
				assert.Equal(t, c.requests, got)
				assert.Equal(t, c.outcomes, b.outcomes())
				assert.Equal(t, c.events, b.drainEvents())
				assert.NoError(t, b.ctl.Ready())
			})
		})
	}
}

// excludingOff excludes namespaces labelled mesh=off, which "default" is and "shop" is not.
func excludingOff(a repair.Action) func(*bench, *repair.Options) {
	return func(b *bench, o *repair.Options) {
		o.Action = a
		off, err := selection.ParseSelector("mesh=off")
		if err != nil {
			panic(err)
		}
		mesh := o.Meshes.Known()[0]
		mesh.Policy.ExcludedNamespaceLabels = []labels.Selector{off}
		o.Meshes = dialect.SetOf(mesh)
		b.cluster.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"mesh": "off"}}})
		b.cluster.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	}
}

// TestExclusionThatCannotBeTold: while the namespace cannot be read, nothing is done to its pods.
func TestExclusionThatCannotBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, excludingOff(repair.ActionDelete), with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.Namespace = "unknown" }))
		for _, r := range b.requests() {
			assert.Equal(t, "get /unknown", r)
		}
		assert.NotEmpty(t, b.outcomes(), "and that is said")
	})
}

func TestBreaksBetweenReadingAndActing(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("changed"))
	for name, c := range map[string]struct {
		verb     string
		do       func(*bench) error
		outcomes map[string]int
		touched  bool
	}{
		"away":            {"get", func(b *bench) error { b.cluster.Gone("default", "a"); return nil }, map[string]int{"gone not-found": 1}, false},
		"away at the end": {"evict", func(b *bench) error { b.cluster.Gone("default", "a"); return nil }, map[string]int{"gone not-found": 1}, false},
		"another pod of the name": {"get", func(b *bench) error {
			b.cluster.Gone("default", "a")
			b.cluster.Set(named(b.t, "passed", "a"))
			return nil
		}, map[string]int{"replaced other-uid": 1}, false},
		"another pod after it was read": {"evict", func(b *bench) error {
			b.cluster.Gone("default", "a")
			b.cluster.Set(named(b.t, "passed", "a"))
			return nil
		}, map[string]int{"conflict conflict": 1}, false},
		"recovered": {"get", func(b *bench) error { b.cluster.Set(named(b.t, "recovered", "a")); return nil },
			map[string]int{"mended recovered": 1}, false},
		"recovered after it was read": {"evict", func(b *bench) error { b.cluster.Set(named(b.t, "recovered", "a")); return nil },
			map[string]int{"conflict conflict": 1}, false},
		"deleted by someone": {"get", func(b *bench) error { b.cluster.Set(named(b.t, "deleting", "a")); return nil },
			map[string]int{"gone deleting": 1}, false},
		"conflict once": {"evict", func(*bench) error { return conflict }, map[string]int{"conflict conflict": 1, "evicted check-failed": 1}, true},
		"outage once": {"evict", func(*bench) error { return errors.New("connection refused") },
			map[string]int{"failed error": 1, "evicted check-failed": 1}, true},
		"answer lost": {"evict", func(b *bench) error {
			_ = b.cluster.Delete(context.Background(), b.pod("a"))
			return context.DeadlineExceeded
		}, map[string]int{"failed timeout": 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				once := sync.Once{}
				b := start(t, func(b *bench, cfg *repair.Options) {
					cfg.Action = repair.ActionDelete
					b.cluster.SetHook(func(verb string, _ types.NamespacedName) (err error) {
						if verb == c.verb {
							once.Do(func() { err = c.do(b) })
						}
						return err
					})
				}, named(t, "crash-loop", "a"))
				time.Sleep(time.Minute)
				assert.Equal(t, c.outcomes, b.outcomes())
				pod, err := b.cluster.Pod(t.Context(), "default", "a")
				if c.touched {
					require.NoError(t, err)
					assert.NotNil(t, pod.DeletionTimestamp)
				} else if err == nil && name != "deleted by someone" {
					assert.Nil(t, pod.DeletionTimestamp, "the wrong pod")
				}
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := repair.Options{Node: "n", Meshes: dialect.SetOf(istio.New())}.On(repairtest.New())
	_, err := repair.New(good)
	require.NoError(t, err)
	for want, change := range map[string]func(*repair.Options){
		"no node name": func(o *repair.Options) { o.Node = "" },
		"no dialect": func(o *repair.Options) {
			o.Meshes = dialect.Set{}
		},
		"no init container": func(o *repair.Options) { o.Meshes = dialect.SetOf(consul.New()) },
		"no exit codes":     func(o *repair.Options) { o.Criteria = map[string]repair.Criteria{"istio": {Containers: []string{"x"}}} },
		"no API server":     func(o *repair.Options) { o.SetCluster(nil) },
		"not one of":        func(o *repair.Options) { o.Action = "destroy" },
		"budget of 1 a minute and 0 at once: both must be positive": func(o *repair.Options) { o.NodeBudget = repair.Budget{PerMinute: 1} },
	} {
		o := good
		change(&o)
		_, err := repair.New(o)
		assert.ErrorContains(t, err, want)
	}
	verifies := good
	verifies.Meshes, verifies.VerifyInterval = dialect.SetOf(consul.New()), time.Hour
	_, err = repair.New(verifies)
	require.NoError(t, err, "rules can be verified although the mesh's pods have no check")
}
