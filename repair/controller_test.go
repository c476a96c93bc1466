package repair_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/repairtest"
)

// bench is a controller on a cluster in memory, in a bubble where time is the
// test's own.
type bench struct {
	t        *testing.T
	cluster  *repairtest.Cluster
	mender   *repairtest.Mender
	events   chan string
	registry *prometheus.Registry
	ctl      *repair.Controller
	log      *strings.Builder
}

// start makes pods, then runs a controller over them until the test ends.
func start(t *testing.T, change func(*bench, *repair.Config), pods ...*corev1.Pod) *bench {
	t.Helper()
	b := &bench{t: t, cluster: repairtest.New(), mender: &repairtest.Mender{}, events: make(chan string, 1000), registry: prometheus.NewRegistry(), log: &strings.Builder{}}
	for _, p := range pods {
		b.cluster.Set(p)
	}
	// What pods were made by is older than what acts on them.
	time.Sleep(time.Minute)
	c := repair.Config{
		Node: "node-1", Criteria: repair.CriteriaFor(istio.New("kube-system")), Source: b.cluster.Pods("node-1"),
		Cluster: b.cluster, Mender: b.mender, NodeBudget: repair.Unlimited,
		Events: &record.FakeRecorder{Events: b.events}, Metrics: b.registry, Log: slog.New(slog.NewTextHandler(&locked{w: b.log}, nil)),
	}
	change(b, &c)
	var err error
	b.ctl, err = repair.New(c)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.ctl.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		b.cluster.Interrupt(false)
		require.NoError(t, <-done)
	})
	b.settle()
	return b
}

// locked is a writer for several goroutines.
type locked struct {
	mu sync.Mutex
	w  *strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// settle waits until everybody waits for time to pass, after a second in which
// informers do what they do a little later.
func (b *bench) settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (b *bench) pod(name string) *corev1.Pod {
	b.t.Helper()
	pod, err := b.cluster.Pod(b.t.Context(), "default", name)
	require.NoError(b.t, err)
	return pod
}

// outcomes are the counts by outcome and reason.
func (b *bench) outcomes() map[string]int { return b.counter("meshcni_repair_outcomes_total") }

func (b *bench) counter(name string) map[string]int {
	b.t.Helper()
	families, err := b.registry.Gather()
	require.NoError(b.t, err)
	got := map[string]int{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "action" {
					labels = append(labels, l.GetValue())
				}
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue(); v != 0 {
				got[strings.Join(labels, " ")] += int(v)
			}
		}
	}
	return got
}

// requests are those to the cluster that change something, or read one pod.
func (b *bench) requests() (all []string) {
	for _, r := range b.cluster.Requests() {
		if !strings.HasPrefix(r, "list") && !strings.HasPrefix(r, "watch") {
			all = append(all, r)
		}
	}
	return all
}

func (b *bench) drainEvents() (all []string) {
	for {
		select {
		case e := <-b.events:
			fields := strings.Fields(e)
			all = append(all, fields[0]+" "+fields[1])
		default:
			slices.Sort(all)
			return all
		}
	}
}

// named is a broken pod, or what the file says, of a name.
func named(t testing.TB, file, name string) *corev1.Pod {
	p := loadPod(t, file)
	p.Name, p.UID = name, ""
	return p
}

func with(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(p)
	return p
}

func action(a repair.Action) func(*bench, *repair.Config) {
	return func(_ *bench, c *repair.Config) { c.Action = a }
}

func TestEachAction(t *testing.T) {
	for name, c := range map[string]struct {
		config   func(*bench, *repair.Config)
		pods     []*corev1.Pod
		requests []string
		outcomes map[string]int
		events   []string
	}{
		"none reports": {
			config: action(repair.ActionNone), pods: []*corev1.Pod{named(t, "crash-loop", "a")},
			outcomes: map[string]int{"found check-failed": 1}, events: []string{"Warning MeshRedirectionMissing"},
		},
		"label": {
			config: action(repair.ActionLabel), pods: []*corev1.Pod{named(t, "crash-loop", "a")},
			requests: []string{"get default/a", "label default/a"},
			outcomes: map[string]int{"labelled check-failed": 1}, events: []string{"Warning MeshRepairLabelled"},
		},
		"labelled already": {config: action(repair.ActionLabel), pods: []*corev1.Pod{named(t, "labelled", "a")}, outcomes: map[string]int{}},
		"label is taken off a pod that got well": {
			config: action(repair.ActionLabel), pods: []*corev1.Pod{with(named(t, "recovered", "a"), func(p *corev1.Pod) {
				p.Labels[repair.DefaultLabel] = repair.DefaultLabelValue
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
			config:   func(b *bench, c *repair.Config) { c.Action = repair.ActionDelete; b.cluster.Block("default", true) },
			pods:     []*corev1.Pod{with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
			requests: []string{"evict default/a", "get default/a"},
			outcomes: map[string]int{"blocked disruption-budget": 1}, events: []string{"Warning MeshRepairBlocked"},
		},
		"delete by force, budget in the way": {
			config: func(b *bench, c *repair.Config) {
				c.Action, c.Force = repair.ActionDelete, true
				b.cluster.Block("default", true)
			},
			pods:     []*corev1.Pod{with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
			requests: []string{"delete default/a", "evict default/a", "get default/a", "get default/a"},
			outcomes: map[string]int{"deleted check-failed": 1}, events: []string{"Warning MeshRepairDeleted"},
		},
		"delete spares the unmanaged": {
			config:   func(_ *bench, c *repair.Config) { c.Action, c.SpareUnmanaged = repair.ActionDelete, true },
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
			_ = b.cluster.Delete(context.Background(), repair.RefTo(b.pod("a")))
			return context.DeadlineExceeded
		}, map[string]int{"failed timeout": 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				once := sync.Once{}
				b := start(t, func(b *bench, cfg *repair.Config) {
					cfg.Action = repair.ActionDelete
					b.cluster.SetHook(func(verb string, _ repair.Ref) (err error) {
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

// TestBudget: with 5 at once and 6 a minute, 20 broken pods go 5, then one in ten seconds.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 20 {
			pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%02d", i)), named(t, "passed", fmt.Sprintf("well-%02d", i)))
		}
		b := start(t, func(_ *bench, c *repair.Config) {
			c.Action, c.NodeBudget = repair.ActionDelete, repair.Budget{PerMinute: 6, Burst: 5}
		}, pods...)
		assert.Equal(t, 5, b.outcomes()["evicted check-failed"])
		assert.Len(t, b.requests(), 15, "read, evict, verify; who has to wait is not even read")
		time.Sleep(30 * time.Second)
		assert.Equal(t, 8, b.outcomes()["evicted check-failed"])
		time.Sleep(3 * time.Minute)
		assert.Equal(t, 20, b.outcomes()["evicted check-failed"])
		for i := range 20 {
			assert.Nil(t, b.pod(fmt.Sprintf("well-%02d", i)).DeletionTimestamp)
		}
	})
}

func TestBreaker(t *testing.T) {
	eight := func(t *testing.T, well int) (pods []*corev1.Pod) {
		for i := range 8 {
			pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%02d", i)))
		}
		for i := range well {
			pods = append(pods, named(t, "passed", fmt.Sprintf("well-%02d", i)))
		}
		return pods
	}
	t.Run("a large share is broken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, func(_ *bench, c *repair.Config) {
				c.Action, c.Breaker = repair.ActionDelete, &repair.Breaker{TrialEvery: 5 * time.Minute}
			}, eight(t, 7)...)
			assert.Equal(t, map[string]int{"held too-many-broken": 8}, b.outcomes())
			assert.Empty(t, b.requests())
			assert.Equal(t, map[string]int{"too-many-broken": 1}, b.counter("meshcni_repair_held"))
			time.Sleep(4 * time.Minute)
			assert.Empty(t, b.requests())
			// One trial brings the share down to half, which closes it.
			time.Sleep(11 * time.Minute)
			assert.Equal(t, 8, b.outcomes()["evicted check-failed"])
			assert.Empty(t, b.counter("meshcni_repair_held"))
		})
	})
	t.Run("the plugin is not ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			notReady := errors.New("no network file")
			b := start(t, func(_ *bench, c *repair.Config) {
				c.Action = repair.ActionDelete
				c.Breaker = &repair.Breaker{Installed: func() error { mu.Lock(); defer mu.Unlock(); return notReady }}
			}, eight(t, 20)...)
			time.Sleep(time.Hour)
			assert.Equal(t, map[string]int{"held plugin-not-ready": 8}, b.outcomes())
			assert.Empty(t, b.requests())
			mu.Lock()
			notReady = nil
			mu.Unlock()
			time.Sleep(15 * time.Second)
			assert.Equal(t, 8, b.outcomes()["evicted check-failed"])
		})
	})
	t.Run("few pods", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, action(repair.ActionDelete), eight(t, 0)[:3]...)
			assert.Equal(t, 3, b.outcomes()["evicted check-failed"], "three of three, but three are few")
		})
	})
	for _, a := range []repair.Action{repair.ActionLabel, repair.ActionRepair} {
		t.Run(string(a)+" makes nothing worse", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, func(_ *bench, c *repair.Config) {
					c.Action, c.Breaker = a, &repair.Breaker{Installed: func() error { return errors.New("not ready") }}
				}, eight(t, 0)...)
				assert.Empty(t, b.outcomes()["held too-many-broken"])
				assert.Len(t, b.outcomes(), 1)
			})
		})
	}
}

// TestBrokenSuccessors: a pod whose successor is broken as well is not deleted
// round and round, though there are too few pods for the breaker.
func TestBrokenSuccessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Config) {
			c.Action = repair.ActionDelete
			b.cluster.LeaveAtOnce = true
		}, named(t, "crash-loop", "web-0"))
		for range 60 * 60 { // a StatefulSet makes it anew
			if _, err := b.cluster.Pod(t.Context(), "default", "web-0"); err != nil {
				b.cluster.Set(named(t, "crash-loop", "web-0"))
			}
			time.Sleep(time.Second)
		}
		n := b.outcomes()["evicted check-failed"]
		assert.LessOrEqual(t, n, 8, "1 + after 1, 2, 4, 8, 16 and 32 minutes")
		assert.GreaterOrEqual(t, n, 5)
	})
}

func TestRepairUntilTheCheckSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(p *corev1.Pod) {
			at := metav1.NewTime(time.Now().Add(2 * time.Second).Truncate(time.Second))
			p.Status.InitContainerStatuses[0].LastTerminationState.Terminated.StartedAt = at
		}
		b := start(t, action(repair.ActionRepair), with(named(t, "crash-loop", "a"), fails))
		require.Equal(t, map[string]int{"repaired check-failed": 1}, b.outcomes())
		calls := len(b.mender.Calls())
		b.cluster.Set(with(b.pod("a"), func(p *corev1.Pod) { p.Annotations["x"] = "y" }))
		time.Sleep(time.Hour)
		assert.Len(t, b.mender.Calls(), calls, "the check has not run since: wait")

		for range 10 {
			b.cluster.Set(with(b.pod("a"), fails))
			time.Sleep(time.Minute)
		}
		assert.Equal(t, map[string]int{"repaired check-failed": 1, "ineffective fails-again": 1, "ineffective gave-up": 1}, b.outcomes())
		b.cluster.Set(named(t, "recovered", "a"))
		b.settle()
		assert.Equal(t, 1, b.outcomes()["recovered recovered"])
	})
}

func TestRestartFindsWhatIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := []*corev1.Pod{named(t, "crash-loop", "a")}
		b := start(t, func(b *bench, c *repair.Config) {
			c.Action = repair.ActionRepair
			b.mender.SetRules(b.pod("a").UID, true) // by the controller before this one
		}, pods...)
		assert.Equal(t, map[string]int{"intact check-failed": 1}, b.outcomes())
	})
}

func TestNoProcessYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Config) {
			c.Action = repair.ActionRepair
			b.mender.Fail(fmt.Errorf("find: %w", repair.ErrNoProcess))
		}, named(t, "crash-loop", "a"))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, map[string]int{"no-process no-process": 1}, b.outcomes(), "said once")
		b.mender.Fail(nil)
		time.Sleep(3 * time.Minute)
		assert.Equal(t, 1, b.outcomes()["repaired check-failed"])
	})
}

func TestMissingPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		missing := []repair.Permission{{Verb: "patch", Resource: "pods", Subresource: "status"}}
		var pods []*corev1.Pod
		for i := range 30 {
			pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%02d", i)))
		}
		b := start(t, func(b *bench, c *repair.Config) {
			c.Action = repair.ActionLabel
			c.Permissions = func(context.Context) ([]repair.Permission, error) { mu.Lock(); defer mu.Unlock(); return missing, nil }
			b.cluster.SetHook(func(verb string, _ repair.Ref) error {
				mu.Lock()
				defer mu.Unlock()
				if verb == "label" && missing != nil {
					return apierrors.NewForbidden(corev1.Resource("pods/status"), "", errors.New("no"))
				}
				return nil
			})
		}, pods...)
		time.Sleep(time.Hour)
		var denied *repair.PermissionError
		require.ErrorAs(t, b.ctl.Ready(), &denied)
		assert.ErrorContains(t, b.ctl.Ready(), "missing permission: patch pods/status")
		assert.Empty(t, b.requests())
		assert.Equal(t, 1, strings.Count(b.log.String(), "missing permission"), b.log.String())
		mu.Lock()
		missing = nil
		mu.Unlock()
		time.Sleep(time.Minute)
		assert.NoError(t, b.ctl.Ready())
		assert.Equal(t, 30, b.outcomes()["labelled check-failed"])
	})
}

func TestWatchExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, action(repair.ActionLabel), named(t, "passed", "a"), named(t, "passed", "b"))
		b.cluster.Gone("default", "b")
		b.cluster.SetHook(func(verb string, _ repair.Ref) error {
			if verb == "watch" {
				return fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
			}
			return nil
		})
		b.cluster.Interrupt(false)
		time.Sleep(time.Minute)
		b.cluster.Set(named(t, "crash-loop", "a"))
		b.cluster.Interrupt(true)
		b.cluster.SetHook(nil)
		time.Sleep(3 * time.Minute)
		assert.Equal(t, 1, b.outcomes()["labelled check-failed"], "the break is made up for")
		assert.Positive(t, b.counter("meshcni_repair_watch_errors_total")["expired"])
	})
}

func TestVerification(t *testing.T) {
	for _, a := range []repair.Action{repair.ActionNone, repair.ActionRepair} {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var uid types.UID
				b := start(t, func(b *bench, c *repair.Config) {
					c.Action, c.VerifyInterval = a, 10*time.Minute
					for _, name := range []string{"a", "b"} {
						b.mender.SetRules(b.pod(name).UID, true)
					}
					uid = b.pod("a").UID
				}, named(t, "passed", "a"), named(t, "recovered", "b"), named(t, "host-network", "c"), named(t, "deleting", "d"), named(t, "mirror", "e"))
				before := len(b.requests())
				time.Sleep(time.Hour)
				results := b.counter("meshcni_repair_verifications_total")
				assert.InDelta(t, 12, results["intact"], 1, "two pods, six rounds")
				assert.Len(t, results, 1)
				assert.Len(t, b.requests(), before, "a pod that is right costs no request")
				b.mender.SetRules(uid, false)
				time.Sleep(time.Hour)
				results = b.counter("meshcni_repair_verifications_total")
				if a == repair.ActionNone {
					assert.InDelta(t, 6, results["drifted"], 1)
					assert.Equal(t, []string{"Warning MeshRulesDrifted"}, b.drainEvents(), "said once")
					assert.Equal(t, 1, b.counter("meshcni_repair_pods")["drifted"])
					return
				}
				assert.Equal(t, 1, results["drifted"])
				assert.Equal(t, 1, results["restored"])
				assert.Equal(t, []string{"Normal MeshRulesRestored", "Warning MeshRulesDrifted"}, b.drainEvents())
				assert.Equal(t, 0, b.counter("meshcni_repair_pods")["drifted"])
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := repair.Config{
		Node: "n", Criteria: repair.CriteriaFor(istio.New()), Source: repairtest.New().Pods("n"), Cluster: repairtest.New(),
	}
	_, err := repair.New(good)
	require.NoError(t, err)
	for want, change := range map[string]func(*repair.Config){
		"node's name":           func(c *repair.Config) { c.Node = "" },
		"no init container":     func(c *repair.Config) { c.Criteria = repair.Criteria{} },
		"no API server":         func(c *repair.Config) { c.Cluster = nil },
		"nothing to program":    func(c *repair.Config) { c.Action = repair.ActionRepair },
		"not one of":            func(c *repair.Config) { c.Action = "destroy" },
		"both must be positive": func(c *repair.Config) { c.NodeBudget = repair.Budget{PerMinute: 1} },
	} {
		c := good
		change(&c)
		_, err := repair.New(c)
		assert.ErrorContains(t, err, want)
	}
}
