package budget_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/node/budget"
)

func TestBudgetValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, budget.Budget{PerMinute: 30, Burst: 10}.Validate())
	require.NoError(t, budget.Unlimited.Validate())
	for _, b := range []budget.Budget{{}, {PerMinute: 1}, {Burst: 1}, {PerMinute: -1, Burst: 1}, {PerMinute: 1, Burst: -1}} {
		assert.Error(t, b.Validate(), "%v", b)
	}
}

// TestNeverExceeds: whatever the times of asking, in no stretch of time is more taken than the burst and what ripens in it; and what is left
// waits as long as it was told and no longer.
func TestNeverExceeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := budget.Budget{PerMinute: rapid.Float64Range(0.1, 600).Draw(rt, "rate"), Burst: rapid.IntRange(1, 20).Draw(rt, "burst")}
		pauses := rapid.SliceOfN(rapid.Int64Range(0, int64(20*time.Second)), 1, 60).Draw(rt, "pauses")
		synctest.Test(t, func(t *testing.T) {
			n := budget.ForNamespaces(b)
			var taken []time.Time
			for _, pause := range pauses {
				time.Sleep(time.Duration(pause))
				for wait := n.Take("a"); wait > 0; wait = n.Take("a") {
					require.LessOrEqual(t, wait, time.Duration(float64(time.Minute)/b.PerMinute)+time.Microsecond)
					time.Sleep(wait)
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

// TestNamespaces: what one namespace has used up is none of another's, also if that is asked for much later; one that changes begins empty;
// and what was not used is given back, never more than the burst.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := budget.ForNamespaces(budget.Budget{PerMinute: 6, Burst: 3})
		assert.Positive(t, n.Take("noisy"), "it begins empty")
		time.Sleep(time.Minute)
		for range 3 {
			assert.Zero(t, n.Take("noisy"))
		}
		assert.Equal(t, 10*time.Second, n.Take("noisy"))
		assert.Equal(t, 10*time.Second, n.Take("noisy"), "who waits takes nothing")
		assert.Zero(t, n.Take("quiet"), "filled since the start")
		for range 5 {
			n.GiveBack("noisy")
		}
		for range 3 {
			assert.Zero(t, n.Take("noisy"))
		}
		assert.Positive(t, n.Take("noisy"))
		for i := range 4 {
			assert.Equal(t, time.Duration(i+1)*10*time.Second, time.Until(n.Turn("noisy")), "each has its turn")
		}
		n.Limit(budget.Budget{PerMinute: 6, Burst: 3})
		assert.Equal(t, 50*time.Second, n.Take("noisy"), "as large as it was")
		n.Limit(budget.Budget{PerMinute: 60, Burst: 3})
		assert.Equal(t, time.Second, n.Take("noisy"), "another, and empty")
		unlimited := budget.ForNamespaces(budget.Unlimited)
		for range 1000 {
			assert.Zero(t, unlimited.Take("a"))
			unlimited.GiveBack("a")
		}
	})
}

// TestForgotten: of a namespace whose budget is full nothing is kept, and what is kept of others is as it was.
func TestForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := budget.ForNamespaces(budget.Budget{PerMinute: 60, Burst: 10})
		time.Sleep(time.Minute)
		for i := range 1000 {
			assert.Zero(t, n.Take(strconv.Itoa(i)))
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(t, n.Len(), 11, "those of the last second")
		for range 9 {
			assert.Zero(t, n.Take("999"))
		}
		assert.Positive(t, n.Take("999"))
	})
}

// TestChanges: a pod that starts is looked at with each change, and one that never stops changing once a second.
func TestChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c budget.Changes
		for range 20 {
			assert.Zero(t, c.Take(time.Now()))
		}
		assert.Equal(t, time.Second, c.Take(time.Now()))
	})
}

// TestCrashLoop: a controller that starts over and over acts no more often than its budget says.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		taken := 0
		const lives, life = 60, 10 * time.Second
		for range lives {
			n := budget.ForNamespaces(budget.Budget{PerMinute: 6, Burst: 10})
			for begin := time.Now(); time.Since(begin) < life; time.Sleep(100 * time.Millisecond) {
				if n.Take("a") == 0 {
					taken++
				}
			}
			time.Sleep(time.Second) // until it is started again
		}
		assert.LessOrEqual(t, float64(taken), 6*(lives*life).Minutes())
	})
}
