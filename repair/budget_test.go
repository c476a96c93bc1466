package repair

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestBudgetValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, DefaultNodeBudget.Validate())
	require.NoError(t, Unlimited.Validate())
	for _, b := range []Budget{{}, {PerMinute: 1}, {Burst: 1}, {PerMinute: -1, Burst: 1}, {PerMinute: 1, Burst: -1}} {
		assert.Error(t, b.Validate(), "%v", b)
	}
}

// TestNodeBudgetNeverExceeds: whatever the times of asking, in no stretch of time
// is more taken than the burst and what ripens in it; and what is left waits as
// long as it was told and no longer.
func TestNodeBudgetNeverExceeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := Budget{PerMinute: rapid.Float64Range(0.1, 600).Draw(rt, "rate"), Burst: rapid.IntRange(1, 20).Draw(rt, "burst")}
		pauses := rapid.SliceOfN(rapid.Int64Range(0, int64(20*time.Second)), 1, 60).Draw(rt, "pauses")
		synctest.Test(t, func(t *testing.T) {
			n := newNodeBudget(b)
			var taken []time.Time
			for _, pause := range pauses {
				time.Sleep(time.Duration(pause))
				if wait := n.take(); wait > 0 {
					time.Sleep(wait)
					require.Zero(t, n.take(), "it said how long")
				}
				taken = append(taken, time.Now())
			}
			for i := range taken {
				for j := i; j < len(taken); j++ {
					most := float64(b.Burst) + taken[j].Sub(taken[i]).Minutes()*b.PerMinute
					require.LessOrEqual(t, float64(j-i+1), most+1e-3)
				}
			}
		})
	})
}

func TestNodeBudgetReturn(t *testing.T) {
	t.Parallel()
	n := newNodeBudget(Budget{PerMinute: 1, Burst: 1})
	require.Positive(t, n.take(), "it begins empty")
	n.giveBack()
	n.giveBack() // never more than the burst
	require.Zero(t, n.take())
	assert.InDelta(t, time.Minute, n.take(), float64(time.Second))
}

// FakeLeases is one lease in memory, with resource versions.
type FakeLeases struct {
	mu     sync.Mutex
	lease  *coordinationv1.Lease
	err    error
	writes int
}

func (l *FakeLeases) Lease(_ context.Context, _, name string) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	if l.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
	}
	return l.lease.DeepCopy(), nil
}

func (l *FakeLeases) CreateLease(_ context.Context, lease *coordinationv1.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease != nil {
		return apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), lease.Name)
	}
	l.put(lease)
	return nil
}

func (l *FakeLeases) UpdateLease(_ context.Context, lease *coordinationv1.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease.ResourceVersion != l.lease.ResourceVersion {
		return apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, errors.New("changed"))
	}
	l.put(lease)
	return nil
}

func (l *FakeLeases) put(lease *coordinationv1.Lease) {
	l.writes++
	l.lease = lease.DeepCopy()
	l.lease.ResourceVersion = strconv.Itoa(l.writes)
}

// TestClusterBudgetOfOthersMaking: whatever the lease says, deletions neither stop nor are they more than the budget: what
// cannot be understood is empty, a time to come is now, and more than the burst is the burst.
func TestClusterBudgetOfOthersMaking(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tokens string
		ahead  time.Duration
		norenew,
		now bool // whether there is a token at once
	}{
		"no count":                 {tokens: ""},
		"no number":                {tokens: "many"},
		"a debt":                   {tokens: "-1"},
		"NaN":                      {tokens: "NaN"},
		"no time":                  {tokens: "1", norenew: true},
		"an hour ahead, empty":     {tokens: "0", ahead: time.Hour},
		"a hundred years ahead":    {tokens: "0", ahead: 100 * 365 * 24 * time.Hour},
		"a second ahead, empty":    {tokens: "0", ahead: time.Second},
		"an hour ahead, with one":  {tokens: "1", ahead: time.Hour, now: true},
		"an hour ahead, too many":  {tokens: "1e300", ahead: time.Hour, now: true},
		"a second ahead, too many": {tokens: "1000000", ahead: time.Second, now: true},
		"too many":                 {tokens: "Inf", now: true},
		"a thousand years ago":     {tokens: "0", ahead: -200 * 365 * 24 * time.Hour, now: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &FakeLeases{}
				b := &leaseBudget{leases: store, namespace: "ns", Budget: Budget{PerMinute: 1, Burst: 2}}
				wait, err := b.take(t.Context())
				require.NoError(t, err)
				require.Equal(t, time.Minute, wait, "it begins empty")
				store.lease.Annotations["meshcni.io/repair-tokens"] = c.tokens
				at := metav1.NewMicroTime(time.Now().Add(c.ahead))
				store.lease.Spec.RenewTime = &at
				if c.norenew {
					store.lease.Spec.RenewTime = nil
				}
				taken := 0
				for begin := time.Now(); time.Since(begin) < 10*time.Minute; {
					wait, err := b.take(t.Context())
					require.NoError(t, err)
					if wait == 0 {
						taken++
					} else if taken == 0 {
						assert.False(t, c.now)
					}
					time.Sleep(max(wait, time.Millisecond))
				}
				assert.GreaterOrEqual(t, taken, 9, "it goes on")
				assert.LessOrEqual(t, taken, 12, "at the pace of the budget")
			})
		})
	}
}

// TestCrashLoop: a controller that starts over and over acts no more often than its budget says.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		taken := 0
		const lives, life = 60, 10 * time.Second
		for range lives {
			n := newNodeBudget(Budget{PerMinute: 6, Burst: 10})
			for begin := time.Now(); time.Since(begin) < life; time.Sleep(100 * time.Millisecond) {
				if n.take() == 0 {
					taken++
				}
			}
			time.Sleep(time.Second) // until it is started again
		}
		assert.LessOrEqual(t, float64(taken), 6*(lives*life).Minutes())
	})
}

// TestClusterBudget: twenty nodes at once take no more than there is.
func TestClusterBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &FakeLeases{}
		var mu sync.Mutex
		taken := 0
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				b := &leaseBudget{leases: store, namespace: "ns", Budget: Budget{PerMinute: 6, Burst: 5}}
				deadline := time.Now().Add(2 * time.Minute)
				for time.Now().Before(deadline) {
					wait, err := b.take(t.Context())
					if assert.NoError(t, err); wait == 0 {
						mu.Lock()
						taken++
						mu.Unlock()
					}
					time.Sleep(max(wait, time.Millisecond))
				}
			})
		}
		wg.Wait()
		assert.GreaterOrEqual(t, taken, 11)
		assert.LessOrEqual(t, taken, 12, "not a burst more: it begins empty")
		assert.Equal(t, taken+1, store.writes, "who gets nothing writes nothing, but for the first, who makes it")
	})
}

func TestClusterBudgetErrors(t *testing.T) {
	t.Parallel()
	store := &FakeLeases{err: apierrors.NewForbidden(coordinationv1.Resource("leases"), "budget", errors.New("no"))}
	b := &leaseBudget{leases: store, namespace: "ns", Budget: Budget{PerMinute: 1, Burst: 1}}
	_, err := b.take(t.Context())
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "ns/meshcni-repair-budget")

	store.err = nil
	require.NoError(t, b.giveBack(t.Context()))
	wait, err := b.take(t.Context())
	require.NoError(t, err)
	assert.Zero(t, wait)
	wait, err = b.take(t.Context())
	require.NoError(t, err)
	assert.InDelta(t, time.Minute.Seconds(), wait.Seconds(), 1)
	assert.False(t, math.IsNaN(wait.Seconds()))
}

// TestClocksThatDiffer: of two nodes that spend of one bucket, one is ahead. What it is ahead is not counted again with
// each token.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	b, start := Budget{PerMinute: 60, Burst: 100}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s, taken := bucket{100, start}, 0
	const minutes = 2
	for step := range minutes * 600 { // the nodes by turns, ten times a second
		now := start.Add(time.Duration(step) * 100 * time.Millisecond)
		if step%2 == 1 {
			now = now.Add(clockSkew)
		}
		if next, wait := b.take(s, now); wait == 0 {
			s, taken = next, taken+1
		}
	}
	most := 100 + 60*minutes
	assert.GreaterOrEqual(t, taken, most-1)
	assert.LessOrEqual(t, taken, most+int(clockSkew.Minutes()*60), "the difference counts once")
}
