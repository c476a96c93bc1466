package keeper

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// Work holds the functions by which a [Lane] works on its pods, and the number of its workers.
type Work struct {
	// Workers bounds the pods that are worked on at a time. One more works on those whose work took long, of all lanes of the keeper one at a time:
	// so a pod whose owner decides how long it takes delays no other.
	Workers int
	// First and Most are the first and the longest wait after failures; each doubles the one before.
	First, Most time.Duration
	// Slow returns the time in a pod from which on it is slow.
	Slow func(types.UID) time.Duration
	// Do works on a pod, and returns when to do so again.
	Do func(context.Context, *Visit) Next
}

// Next is when a pod is worked on again besides when somebody adds it. The zero value means never, and that no work on it has failed.
type Next struct {
	After time.Duration // zero: only with Retry
	Retry bool          // with growing waits
}

// Visit is the work on one pod, with the time that it spends where the pod decides how long it takes. An API server that takes long makes no
// pod slow: it would make all so.
type Visit struct {
	// UID is the pod's. Do may set it to another by which the same pod is known, for what comes next.
	UID types.UID
	// Slow: it is in the lane of slow pods.
	Slow bool

	spent time.Duration
	spend bool
	cut   bool
}

// WasCut reports whether it is worked on again for that.
func (v *Visit) WasCut() bool { return v.cut }

// Since notes that what the pod decides on began then and is over now. A nil Visit notes nothing.
func (v *Visit) Since(begin time.Time) {
	if v != nil {
		v.spent, v.spend = v.spent+time.Since(begin), true
	}
}

// Cut notes that a part of the work was ended because it took long. The pod is slow then, and is worked on again at once.
func (v *Visit) Cut() { v.cut, v.spend = true, true }

type visitKey struct{}

// VisitOf returns the visit that the context of a Do belongs to, or nil.
func VisitOf(ctx context.Context) *Visit {
	v, _ := ctx.Value(visitKey{}).(*Visit)
	return v
}

// Lane is a queue of pods with growing waits after failures, and its workers. A pod is in the hands of one worker of a lane at a time. Make one with
// [Keeper.Lane], and have [Lane.Run] work.
type Lane struct {
	workqueue.TypedRateLimitingInterface[types.UID]

	k    *Keeper
	work Work
	slow workqueue.TypedInterface[types.UID]
}

// Lane returns a new one.
func (k *Keeper) Lane(work Work) *Lane {
	return &Lane{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](work.First, work.Most)),
		k:                          k, work: work, slow: workqueue.NewTyped[types.UID](),
	}
}

// Len returns how many pods wait.
func (l *Lane) Len() int { return l.TypedRateLimitingInterface.Len() + l.slow.Len() }

// ShutDown ends the lane, also one that has not run.
func (l *Lane) ShutDown() {
	l.TypedRateLimitingInterface.ShutDown()
	l.slow.ShutDown()
}

// Run works until the context ends. A lane runs once.
func (l *Lane) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, l.ShutDown)()
	var wg sync.WaitGroup
	for range l.work.Workers {
		wg.Go(func() {
			for l.next(ctx, l.TypedRateLimitingInterface) {
			}
		})
	}
	for l.next(ctx, l.slow) {
	}
	wg.Wait()
}

// next works on one pod. It returns false when the lane has shut down. A pod changes between ordinary and slow only here and only while
// nobody works on it.
func (l *Lane) next(ctx context.Context, from workqueue.TypedInterface[types.UID]) bool {
	uid, shutdown := from.Get()
	if shutdown {
		return false
	}
	defer from.Done(uid)
	if ctx.Err() != nil {
		return true
	}
	v := &Visit{UID: uid, Slow: l.k.Slow(uid)}
	if v.Slow != (from == l.slow) {
		if v.Slow {
			l.slow.Add(uid)
		} else {
			l.Add(uid)
		}
		return true
	}
	if v.Slow {
		select {
		case l.k.slow <- struct{}{}:
			defer func() { <-l.k.slow }()
		case <-ctx.Done():
			return true
		}
	}
	next := l.work.Do(context.WithValue(ctx, visitKey{}, v), v)
	if v.spend {
		limit := l.work.Slow(v.UID)
		l.k.took(v.UID, v.spent, limit, v.cut)
	}
	if v.cut {
		l.Add(v.UID)
	}
	switch {
	case next.Retry:
		l.AddRateLimited(v.UID)
	case next.After <= 0:
		l.Forget(v.UID)
	}
	if next.After > 0 {
		l.AddAfter(v.UID, next.After)
	}
	return true
}

// Took notes how long work outside of the lane took where the pod decides it.
func (l *Lane) Took(uid types.UID, spent time.Duration) {
	l.k.took(uid, spent, l.work.Slow(uid), false)
}

// Round gives each pod its turn once in an interval, evenly, so that the cost is the same at any time, round after round until the context ends. begin
// returns the pods of the round that begins.
func Round(ctx context.Context, interval time.Duration, begin func() []types.UID, turn func(types.UID)) {
	for {
		uids := begin()
		pause := interval / time.Duration(len(uids)+1)
		for _, uid := range uids {
			if !Sleep(ctx, jitter(pause)) {
				return
			}
			turn(uid)
		}
		if !Sleep(ctx, jitter(pause)) {
			return
		}
	}
}

// jitter spreads a pause by a tenth, so that the agents of a cluster that started together part.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)/5*float64(d))
}

// Sleep returns false if the context ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// stay says for how many quick visits a slow pod stays slow. It is twice as many each time, so that a pod that is slow only every other time does
// not hold up others either.
type stay struct{ left, visits int }

// mostVisits bounds a stay.
const mostVisits = 32

// Slow reports whether a pod is worked on in the lane of slow pods.
func (k *Keeper) Slow(uid types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.memory[k.uid(uid)]
	return m != nil && m.stay.left > 0
}

// took notes how long the work on a pod took, where the pod decides it.
func (k *Keeper) took(uid types.UID, spent, limit time.Duration, cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	uid = k.uid(uid)
	slow := cut || spent >= limit
	if !slow && k.memory[uid] == nil {
		return
	}
	s := &k.of(uid).stay
	defer k.tidy(uid)
	switch {
	case slow:
		s.visits = min(max(1, 2*s.visits), mostVisits)
		s.left = s.visits
	case s.left > 0:
		s.left--
	case s.visits > 0:
		s.visits--
	}
}
