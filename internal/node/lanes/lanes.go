// Package lanes works on the keys of a queue with several workers, so that a key whose work takes long delays no other: such keys have a
// lane of their own, with one worker for them all. A key is in the hands of one worker at a time.
//
// It is for work inside pods, whose owners decide how long that takes.
package lanes

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Queue is a rate-limited queue with two lanes. Keys are added as to any queue. Make one with [New], and have [Queue.Run] work on it.
type Queue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]

	slow  workqueue.TypedInterface[K]
	limit func(K) time.Duration
	same  func(K) K

	mu    sync.Mutex
	known map[K]stay
}

// stay says for how many quick runs a slow key stays in the slow lane. It is twice as many each time, so that a key that is slow only
// every other time does not hold up the ordinary lane either.
type stay struct{ left, runs int }

// mostRuns bounds a stay.
const mostRuns = 32

// New returns a queue, with waits after failures as the limiter says. Work that takes as long as the limit of its key, or longer, is slow. same returns the key
// that stands for all that mean the same; nil: each is its own.
func New[K comparable](limiter workqueue.TypedRateLimiter[K], limit func(K) time.Duration, same func(K) K) *Queue[K] {
	if same == nil {
		same = func(key K) K { return key }
	}
	return &Queue[K]{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(limiter), slow: workqueue.NewTyped[K](),
		limit: limit, same: same, known: map[K]stay{},
	}
}

// Limit returns the time from which the work on a key is slow.
func (q *Queue[K]) Limit(key K) time.Duration { return q.limit(q.same(key)) }

// Len returns how many keys wait in both lanes.
func (q *Queue[K]) Len() int { return q.TypedRateLimitingInterface.Len() + q.slow.Len() }

// ShutDown ends both lanes.
func (q *Queue[K]) ShutDown() {
	q.TypedRateLimitingInterface.ShutDown()
	q.slow.ShutDown()
}

// Run works with so many workers on the ordinary lane and one on the slow lane, and returns after [Queue.ShutDown]. Once the context has
// ended it drains the queue without working on it.
func (q *Queue[K]) Run(ctx context.Context, workers int, work func(ctx context.Context, key K)) {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for q.next(ctx, q.TypedRateLimitingInterface, work) {
			}
		})
	}
	for q.next(ctx, q.slow, work) {
	}
	wg.Wait()
}

// next works on one key of a lane. It returns false when the lane has shut down. A key changes its lane only here and only while nobody
// works on it.
func (q *Queue[K]) next(ctx context.Context, from workqueue.TypedInterface[K], work func(context.Context, K)) bool {
	key, shutdown := from.Get()
	if shutdown {
		return false
	}
	defer from.Done(key)
	if ctx.Err() != nil {
		return true
	}
	if slow := q.Slow(key); slow != (from == q.slow) {
		if slow {
			q.slow.Add(key)
		} else {
			q.Add(key)
		}
		return true
	}
	work(ctx, key)
	return true
}

// Slow reports whether a key is worked on in the slow lane.
func (q *Queue[K]) Slow(key K) bool {
	key = q.same(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.known[key].left > 0
}

// Took notes how long the work on a key took, where the key decides it. The work calls it at its end.
func (q *Queue[K]) Took(key K, spent time.Duration) {
	key = q.same(key)
	limit := q.limit(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	s, known := q.known[key]
	switch {
	case spent >= limit:
		s.runs = min(max(1, 2*s.runs), mostRuns)
		s.left = s.runs
	case !known:
		return
	case s.left > 0:
		s.left--
	default:
		s.runs--
	}
	if s.left == 0 && s.runs <= 0 {
		delete(q.known, key)
		return
	}
	q.known[key] = s
}

// Drop forgets a key that is gone.
func (q *Queue[K]) Drop(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.known, key)
}
