package repair_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
)

// TestBudget: with 5 at once and 6 a minute, 20 broken pods go one in ten seconds from the start on, and 5 at once after a
// time in which there was nothing to do.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 20 {
			pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%02d", i)), named(t, "passed", fmt.Sprintf("well-%02d", i)))
		}
		b := start(t, func(_ *bench, c *repair.Options) {
			c.Action, c.NodeBudget = repair.ActionDelete, repair.Budget{PerMinute: 6, Burst: 5}
		}, pods...)
		assert.Empty(t, b.requests(), "who has to wait is not even read")
		time.Sleep(30 * time.Second)
		assert.Equal(t, 3, b.outcomes()["evicted check-failed"])
		assert.Len(t, b.requests(), 9, "read, evict, verify")
		time.Sleep(10 * time.Minute)
		assert.Equal(t, 20, b.outcomes()["evicted check-failed"])
		for i := range 20 {
			b.cluster.Set(with(named(t, "crash-loop", fmt.Sprintf("again-%02d", i)), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "another" }))
		}
		b.settle()
		assert.Equal(t, 25, b.outcomes()["evicted check-failed"], "five at once")
		for i := range 20 {
			assert.Nil(t, b.pod(fmt.Sprintf("well-%02d", i)).DeletionTimestamp)
		}
	})
}

// TestHeld: nothing is deleted while the node's plugin is not ready, or nothing confines deletions to the node.
func TestHeld(t *testing.T) {
	eight := func(t *testing.T, well int) (pods []*corev1.Pod) {
		for i := range 8 {
			pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%02d", i)))
		}
		for i := range well {
			pods = append(pods, named(t, "passed", fmt.Sprintf("well-%02d", i)))
		}
		return pods
	}
	t.Run("the plugin is not ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			notReady := errors.New("no network file")
			b := start(t, func(_ *bench, c *repair.Options) {
				c.Action = repair.ActionDelete
				c.Installed = func() error { mu.Lock(); defer mu.Unlock(); return notReady }
			}, eight(t, 20)...)
			time.Sleep(5 * time.Minute)
			assert.Equal(t, map[string]int{"held plugin-not-ready": 8}, b.outcomes())
			assert.Empty(t, b.requests())
			mu.Lock()
			notReady = nil
			mu.Unlock()
			time.Sleep(15 * time.Second)
			assert.Equal(t, 8, b.outcomes()["evicted check-failed"])
		})
	})
	t.Run("nothing confines deletions", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var confined atomic.Bool
			b := start(t, func(_ *bench, c *repair.Options) {
				c.Action = repair.ActionDelete
				c.Confined = func() error {
					if confined.Load() {
						return nil
					}
					return errors.New("no policy")
				}
			}, eight(t, 20)...)
			time.Sleep(time.Hour)
			assert.Equal(t, map[string]int{"held not-confined": 8}, b.outcomes())
			assert.Equal(t, map[string]int{"not-confined": 1}, b.counter("meshcni_repair_held"))
			assert.Empty(t, b.requests())
			confined.Store(true)
			time.Sleep(30 * time.Second)
			assert.Equal(t, 8, b.outcomes()["evicted check-failed"])
		})
	})
	for _, a := range []repair.Action{repair.ActionLabel, repair.ActionRepair} {
		t.Run(string(a)+" makes nothing worse", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, func(_ *bench, c *repair.Options) {
					c.Action, c.Installed = a, func() error { return errors.New("not ready") }
				}, eight(t, 0)...)
				assert.Len(t, b.outcomes(), 1)
				assert.Empty(t, b.outcomes()["held plugin-not-ready"])
			})
		})
	}
}

// TestBrokenSuccessors: a pod whose successor is broken as well is not deleted
// round and round.
func TestBrokenSuccessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionDelete
			b.cluster.LeaveAtOnce = true
		}, named(t, "crash-loop", "web-0"))
		for range 60 * 60 { // a StatefulSet makes it anew
			if _, err := b.cluster.Pod(t.Context(), "default", "web-0"); err != nil {
				b.cluster.Set(named(t, "crash-loop", "web-0"))
			}
			time.Sleep(1001 * time.Millisecond) // never at the instant of a deletion: on a real clock nothing is
		}
		n := b.outcomes()["evicted check-failed"]
		assert.LessOrEqual(t, n, 8, "1 + after 1, 2, 4, 8, 16 and 32 minutes")
		assert.GreaterOrEqual(t, n, 5)
	})
}

// TestForgedOwner: who claims, in a namespace of his own, the owner of another's pods holds back nobody's deletion but
// that of his own.
func TestForgedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		victim := func(name string) *corev1.Pod {
			return with(named(t, "crash-loop", name), func(p *corev1.Pod) { p.Namespace = "victim" })
		}
		forged := func(name string) *corev1.Pod {
			return with(named(t, "crash-loop", name), func(p *corev1.Pod) {
				p.Namespace, p.OwnerReferences = "attacker", victim(name).OwnerReferences
			})
		}
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionDelete
			b.cluster.LeaveAtOnce = true
		}, forged("a"))
		require.Equal(t, 1, b.outcomes()["evicted check-failed"])
		b.cluster.Set(victim("web-0"))
		b.settle()
		assert.Equal(t, 2, b.outcomes()["evicted check-failed"], "it is no successor of the other")
		b.cluster.Set(forged("b"))
		b.cluster.Set(victim("web-1"))
		b.settle()
		assert.Equal(t, 2, b.outcomes()["held successor-broken"], "within a namespace they are")
		assert.Equal(t, 2, b.outcomes()["evicted check-failed"])
	})
}

func TestMissingPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		missing := []api.Right{{Verb: "patch", Resource: "pods", Subresource: "status"}}
		var pods []*corev1.Pod
		for i := range 30 {
			pods = append(pods, named(t, "crash-loop", fmt.Sprintf("broken-%02d", i)))
		}
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionLabel
			b.prepare = func(c *repair.Controller) {
				c.SetPermissions(func(context.Context) ([]api.Right, error) { mu.Lock(); defer mu.Unlock(); return missing, nil })
			}
			b.cluster.SetHook(func(verb string, _ types.NamespacedName) error {
				mu.Lock()
				defer mu.Unlock()
				if verb == "label" && missing != nil {
					return apierrors.NewForbidden(corev1.Resource("pods/status"), "", errors.New("no"))
				}
				return nil
			})
		}, pods...)
		time.Sleep(time.Hour)
		require.ErrorContains(t, b.ctl.Ready(), "missing permission: patch pods/status")
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
		b.cluster.SetHook(func(verb string, _ types.NamespacedName) error {
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
		assert.Positive(t, b.counter("meshcni_pods_watch_errors_total")["expired"])
	})
}

// deaf is a cluster that says yes and does nothing.
type deaf struct{ *repairtest.Cluster }

func (deaf) Evict(context.Context, *corev1.Pod) error { return nil }
func (d deaf) Label(ctx context.Context, r *corev1.Pod, _, _ string) (*corev1.Pod, error) {
	return d.Pod(ctx, r.Namespace, r.Name)
}

// deafKernel says that it has put the rules there, and has not.
type deafKernel struct{ *repairtest.Redirector }

func (deafKernel) Apply(context.Context, *corev1.Pod) (apply.Result, error) {
	return apply.Result{Changed: true}, nil
}

// TestUnverified: what the server or the kernel took and did not do is noticed, and tried again.
func TestUnverified(t *testing.T) {
	for a, reason := range map[repair.Action]string{
		repair.ActionLabel: "no-label", repair.ActionDelete: "not-deleting", repair.ActionRepair: "rules-differ",
	} {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, func(b *bench, c *repair.Options) {
					c.Action = a
					c.SetCluster(deaf{b.cluster})
					c.SetRedirector(deafKernel{b.rules})
				}, named(t, "crash-loop", "a"))
				time.Sleep(time.Hour)
				assert.Equal(t, map[string]int{"unverified " + reason: 1}, b.outcomes())
				assert.Equal(t, []string{"Warning MeshRepairUnverified"}, b.drainEvents(), "said once")
				assert.GreaterOrEqual(t, len(b.requests()), 20, "and tried on")
				assert.LessOrEqual(t, len(b.requests()), 100, "ever more slowly")
			})
		})
	}
}

// TestBlockedCostsNoBudget: what a disruption budget forbids does not use up what
// others could be deleted with.
func TestBlockedCostsNoBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 3 {
			pods = append(pods, with(named(t, "crash-loop", fmt.Sprintf("blocked-%d", i)), func(p *corev1.Pod) {
				p.Namespace, p.Status.Phase = "blocked", corev1.PodRunning
			}), named(t, "passed", fmt.Sprintf("well-%d", i)), named(t, "passed", fmt.Sprintf("fine-%d", i)))
		}
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action, c.NodeBudget = repair.ActionDelete, repair.Budget{PerMinute: 0.01, Burst: 2}
			b.cluster.Block("blocked", true)
		}, pods...)
		time.Sleep(6*time.Hour + 7*time.Second) // it is full by now, and nobody is asking
		require.GreaterOrEqual(t, b.outcomes()["blocked disruption-budget"], 3)
		b.cluster.Set(named(t, "crash-loop", "free-0"))
		b.cluster.Set(with(named(t, "crash-loop", "free-1"), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }))
		time.Sleep(20 * time.Second)
		assert.Equal(t, 2, b.outcomes()["evicted check-failed"])
	})
}

// TestVerifyingHastensNothing: a round of verification does not try again what has failed before its wait is over.
func TestVerifyingHastensNothing(t *testing.T) {
	tries := func(interval time.Duration) (n int) {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, func(b *bench, c *repair.Options) {
				c.Action, c.VerifyInterval = repair.ActionDelete, interval
				b.cluster.Block("default", true)
			}, with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), named(t, "passed", "b"))
			time.Sleep(30 * time.Minute)
			assert.Equal(t, interval > 0, len(b.counter("meshcni_verifications_total")) > 0)
			for _, r := range b.requests() {
				if r == "evict default/a" {
					n++
				}
			}
		})
		return n
	}
	without := tries(0)
	assert.Greater(t, without, 10)
	assert.LessOrEqual(t, tries(time.Second), without+5, "but for when all pods are looked at, which is not on the second")
}

// TestAdmissionRefuses: Forbidden for another cause than a missing permission is
// the pod's affair, and suspends nothing.
func TestAdmissionRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionDelete
			b.prepare = func(c *repair.Controller) {
				c.SetPermissions(func(context.Context) ([]api.Right, error) { return nil, nil })
			}
			b.cluster.SetHook(func(verb string, r types.NamespacedName) error {
				if verb == "evict" && r.Name == "a" {
					return apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("the admission webhook says no"))
				}
				return nil
			})
		}, named(t, "crash-loop", "a"), named(t, "crash-loop", "b"))
		time.Sleep(time.Minute)
		assert.Equal(t, map[string]int{"failed refused": 1, "evicted check-failed": 1}, b.outcomes())
		assert.NoError(t, b.ctl.Ready())
	})
}

// TestUnreachable: a server that does not answer is one line in the log, and one more after a minute, and the reason for not being ready.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		down := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionLabel
			answer := func() error { mu.Lock(); defer mu.Unlock(); return down }
			b.prepare = func(c *repair.Controller) {
				c.SetPermissions(func(context.Context) ([]api.Right, error) { return nil, answer() })
			}
			b.cluster.SetHook(func(string, types.NamespacedName) error { return answer() })
		}, named(t, "crash-loop", "a"))
		time.Sleep(10 * time.Minute)
		require.ErrorContains(t, b.ctl.Ready(), "connection refused")
		assert.Equal(t, 1, strings.Count(b.log.String(), "may be out of date"), b.log.String())
		mu.Lock()
		down = nil
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		require.NoError(t, b.ctl.Ready())
		assert.Equal(t, 1, b.outcomes()["labelled check-failed"])
	})
}
