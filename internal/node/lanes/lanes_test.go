package lanes_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/util/workqueue"

	"github.com/meshcni/meshcni/internal/node/lanes"
)

// run has a queue with two workers work on keys, each of which takes as long as takes says.
func run(t *testing.T, takes func(key string) time.Duration) (q *lanes.Queue[string], began func() map[string][]time.Time) {
	q = lanes.New(workqueue.DefaultTypedControllerRateLimiter[string](), func(string) time.Duration { return time.Second }, nil)
	var mu sync.Mutex
	times, inside := map[string][]time.Time{}, map[string]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.Run(t.Context(), 2, func(_ context.Context, key string) {
			begin := time.Now()
			mu.Lock()
			assert.False(t, inside[key], "two workers have it")
			inside[key], times[key] = true, append(times[key], begin)
			mu.Unlock()
			time.Sleep(takes(key))
			mu.Lock()
			inside[key] = false
			mu.Unlock()
			q.Took(key, time.Since(begin))
		})
	}()
	t.Cleanup(func() { q.ShutDown(); <-done })
	return q, func() map[string][]time.Time { mu.Lock(); defer mu.Unlock(); return times }
}

// TestSlowKeys: keys that are known to be slow wait for one another, and no other key waits for them.
func TestSlowKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := map[string]bool{"a": true, "b": true, "c": true, "d": true}
		q, began := run(t, func(key string) time.Duration {
			if slow[key] {
				return time.Minute
			}
			return time.Millisecond
		})
		for key := range slow {
			q.Add(key)
		}
		time.Sleep(10 * time.Minute)
		begin := time.Now()
		for key := range slow {
			q.Add(key)
		}
		synctest.Wait()
		for range 20 {
			q.Add("quick")
			time.Sleep(time.Second)
		}
		quick := began()["quick"]
		assert.Len(t, quick, 20)
		assert.Equal(t, begin, quick[0], "at once")
		assert.Equal(t, 3, q.Len(), "one is being worked on")
	})
}

// TestFlappingKey: a key that is slow now and then comes back into the ordinary lane more and more seldom, and for good once it stays quick.
func TestFlappingKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int32
		var calm atomic.Bool
		var q *lanes.Queue[string]
		q, _ = run(t, func(key string) time.Duration {
			if calm.Load() || q.Slow(key) { // quick wherever it does no harm
				return 0
			}
			held.Add(1)
			return 10 * time.Second
		})
		for range 320 {
			q.Add("a")
			time.Sleep(20 * time.Second)
		}
		assert.LessOrEqual(t, held.Load(), int32(6+320/32))
		calm.Store(true)
		for range 100 {
			q.Add("a")
			time.Sleep(time.Second)
		}
		assert.False(t, q.Slow("a"))
		q.Took("a", 2*time.Second)
		assert.True(t, q.Slow("a"))
		q.Drop("a")
		assert.False(t, q.Slow("a"))
	})
}
