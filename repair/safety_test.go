package repair_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/repair"
)

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
