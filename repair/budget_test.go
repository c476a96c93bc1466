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
	"k8s.io/apimachinery/pkg/types"
)

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
				b := &leaseBudget{leases: store, lease: types.NamespacedName{Namespace: "ns", Name: "budget"}, tokens: "meshcni.io/repair-tokens", Budget: Budget{PerMinute: 1, Burst: 2}}
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
				b := &leaseBudget{leases: store, lease: types.NamespacedName{Namespace: "ns", Name: "budget"}, tokens: "meshcni.io/repair-tokens", Budget: Budget{PerMinute: 6, Burst: 5}}
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
	b := &leaseBudget{leases: store, lease: types.NamespacedName{Namespace: "ns", Name: "budget"}, tokens: "meshcni.io/repair-tokens", Budget: Budget{PerMinute: 1, Burst: 1}}
	_, err := b.take(t.Context())
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "lease ns/budget")

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
