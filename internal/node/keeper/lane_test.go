package keeper_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/keeper"
)

// pods are a node's, by UID.
type pods struct {
	mu   sync.Mutex
	all  map[types.UID]*corev1.Pod
	subs map[int]func(types.UID)
}

func (p *pods) ByUID(uid types.UID) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[uid]
}

func (p *pods) RuntimeUID(pod *corev1.Pod) types.UID { return pod.UID }

func (p *pods) Subscribe(changed func(types.UID)) (cancel func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := len(p.subs)
	p.subs[id] = changed
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.subs, id)
	}
}

// set adds pods or changes them, and tells of it.
func (p *pods) set(phase corev1.PodPhase, uids ...types.UID) {
	for _, uid := range uids {
		var pod *corev1.Pod
		if phase != "" {
			pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: corev1.PodStatus{Phase: phase}}
		}
		p.mu.Lock()
		p.all[uid] = pod
		subs := slices.Collect(maps.Values(p.subs))
		p.mu.Unlock()
		for _, changed := range subs {
			changed(uid)
		}
	}
}

func (p *pods) gone(uid types.UID) { p.set("", uid) }

func newPods() *pods {
	return &pods{all: map[types.UID]*corev1.Pod{}, subs: map[int]func(types.UID){}}
}

// run has a lane with two workers work on pods, each of which takes as long as takes says.
func run(t *testing.T, k *keeper.Keeper, takes func(types.UID) time.Duration) (q *keeper.Lane, began func() map[types.UID][]time.Time) {
	var mu sync.Mutex
	times, inside := map[types.UID][]time.Time{}, map[types.UID]bool{}
	q = k.Lane(keeper.Work{
		Workers: 2, First: time.Second, Most: time.Minute, Slow: func(types.UID) time.Duration { return time.Second },
		Do: func(_ context.Context, v *keeper.Visit) keeper.Next {
			begin := time.Now()
			mu.Lock()
			assert.False(t, inside[v.UID], "two workers have it")
			inside[v.UID], times[v.UID] = true, append(times[v.UID], begin)
			mu.Unlock()
			time.Sleep(takes(v.UID))
			mu.Lock()
			inside[v.UID] = false
			mu.Unlock()
			v.Since(begin)
			return keeper.Next{}
		},
	})
	done := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		q.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return q, func() map[types.UID][]time.Time { mu.Lock(); defer mu.Unlock(); return times }
}

// TestSlowKeys: keys that are known to be slow wait for one another, and no other key waits for them.
func TestSlowKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := map[types.UID]bool{"a": true, "b": true, "c": true, "d": true}
		p := newPods()
		p.set(corev1.PodRunning, "a", "b", "c", "d", "quick")
		k := keeper.New(p)
		q, began := run(t, k, func(key types.UID) time.Duration {
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
		p := newPods()
		p.set(corev1.PodRunning, "a")
		k := keeper.New(p)
		q, _ := run(t, k, func(key types.UID) time.Duration {
			if calm.Load() || k.Slow(key) { // quick wherever it does no harm
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
		assert.False(t, k.Slow("a"))
		q.Took("a", 2*time.Second)
		assert.True(t, k.Slow("a"))
		k.Subscribe(func(types.UID, time.Duration) {})
		p.gone("a")
		assert.False(t, k.Slow("a"))
	})
}

// TestSlowPodsOfAllLanes: of the slow pods of all lanes one is worked on at a time, and a pod that is slow in one lane is so in each.
func TestSlowPodsOfAllLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPods()
		p.set(corev1.PodRunning, "a", "b")
		k := keeper.New(p)
		var inside, most atomic.Int32
		takes := func(uid types.UID) time.Duration {
			if k.Slow(uid) {
				most.Store(max(most.Load(), inside.Add(1)))
				defer inside.Add(-1)
				time.Sleep(time.Minute)
			}
			return time.Minute
		}
		one, _ := run(t, k, takes)
		other, began := run(t, k, takes)
		one.Add("a")
		one.Add("b")
		time.Sleep(2 * time.Minute)
		for range 3 {
			for _, uid := range []types.UID{"a", "b"} {
				one.Add(uid)
				other.Add(uid)
			}
			time.Sleep(10 * time.Minute)
		}
		synctest.Wait()
		assert.Equal(t, int32(1), most.Load())
		assert.Len(t, began()["a"], 3)
		assert.Len(t, began()["b"], 3)
	})
}

// TestCuts: what was cut is worked on again at once, as that of a slow pod, and a failure after a growing wait until one visit goes well.
func TestCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPods()
		p.set(corev1.PodRunning, "a", "b")
		k := keeper.New(p)
		var slow []bool
		var failed []time.Time
		q := k.Lane(keeper.Work{
			Workers: 1, First: time.Second, Most: 4 * time.Second, Slow: func(types.UID) time.Duration { return time.Second },
			Do: func(ctx context.Context, v *keeper.Visit) keeper.Next {
				assert.Same(t, v, keeper.VisitOf(ctx))
				if v.UID == "b" {
					failed = append(failed, time.Now())
					return keeper.Next{Retry: len(failed) < 6, After: time.Hour}
				}
				slow = append(slow, v.Slow)
				if !v.Slow {
					v.Cut()
				}
				assert.Equal(t, !v.Slow, v.WasCut())
				return keeper.Next{}
			},
		})
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		go q.Run(ctx)
		q.Add("a")
		synctest.Wait()
		assert.Equal(t, []bool{false, true}, slow)
		q.Add("b")
		time.Sleep(time.Minute)
		synctest.Wait()
		var waits []time.Duration
		for i := 1; i < len(failed); i++ {
			waits = append(waits, failed[i].Sub(failed[i-1]))
		}
		assert.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second}, waits)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Len(t, failed, 7, "after the hour that it asked for")
	})
}

// TestRound: each pod of a round is worked on once in the interval, evenly.
func TestRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper.New(newPods())
		q, began := run(t, k, func(types.UID) time.Duration { return 0 })
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		var rounds []time.Time
		go keeper.Round(ctx, time.Minute, func() []types.UID {
			rounds = append(rounds, time.Now())
			return []types.UID{"a", "b", "c"}
		}, q.Add)
		time.Sleep(10*time.Minute + 30*time.Second)
		synctest.Wait()
		assert.InDelta(t, 11, len(rounds), 1)
		for uid, times := range began() {
			assert.InDelta(t, 10.5, len(times), 1, uid)
			for i := 1; i < len(times); i++ {
				assert.InDelta(t, time.Minute, times[i].Sub(times[i-1]), float64(10*time.Second), uid)
			}
		}
	})
}

// TestMemory: each policy has its own part of a pod's memory, and what nobody has anything of goes with the pod.
func TestMemory(t *testing.T) {
	p := newPods()
	k := keeper.New(p)
	one, other := keeper.NewPart[int](k, "one"), keeper.NewPart[string](k, "other")
	type change struct {
		uid  types.UID
		wait time.Duration
	}
	var changes []change
	stop := k.Subscribe(func(uid types.UID, wait time.Duration) { changes = append(changes, change{uid, wait}) })
	p.set(corev1.PodRunning, "a")
	one.Change("a", func(n *int) { *n++ })
	one.Change("a", func(n *int) { *n++ })
	other.Change("a", func(s *string) { *s = "x" })
	assert.Equal(t, 2, one.Get("a"))
	assert.Equal(t, map[types.UID]string{"a": "x"}, other.All())
	p.gone("a")
	assert.Equal(t, 2, one.Get("a"), "a policy may have something left to do")
	one.Drop(func(uid types.UID, n int) bool { return uid == "a" && n == 2 })
	assert.Zero(t, one.Get("a"))
	assert.Equal(t, "x", other.Get("a"))
	assert.Empty(t, keeper.NewPart[string](k, "other").All(), "its policy begins anew")
	assert.Equal(t, []change{{"a", 0}, {"a", 0}}, changes)

	changes = nil
	for range 30 {
		p.set(corev1.PodRunning, "a")
	}
	p.set(corev1.PodSucceeded, "a")
	p.gone("a")
	assert.Zero(t, changes[19].wait)
	assert.Positive(t, changes[25].wait, "it changes too often")
	assert.Zero(t, changes[30].wait, "it has ended")
	assert.Zero(t, changes[31].wait, "it is gone")
	stop()
	changes = nil
	p.set(corev1.PodRunning, "a")
	assert.Empty(t, changes)
}
