package budget_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/budget"
)

func TestBudgetValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, budget.Budget{PerMinute: 30, Burst: 10}.Validate())
	require.NoError(t, budget.Unlimited.Validate())
	for _, b := range []budget.Budget{{}, {PerMinute: 1}, {Burst: 1}, {PerMinute: -1, Burst: 1}, {PerMinute: 1, Burst: -1}} {
		assert.Error(t, b.Validate(), "%v", b)
	}
}

// TestNodeBudgetNeverExceeds: whatever the times of asking, in no stretch of time
// is more taken than the burst and what ripens in it; and what is left waits as
// long as it was told and no longer.
func TestNodeBudgetNeverExceeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := budget.Budget{PerMinute: rapid.Float64Range(0.1, 600).Draw(rt, "rate"), Burst: rapid.IntRange(1, 20).Draw(rt, "burst")}
		pauses := rapid.SliceOfN(rapid.Int64Range(0, int64(20*time.Second)), 1, 60).Draw(rt, "pauses")
		synctest.Test(t, func(t *testing.T) {
			n := budget.ForNode(b)
			var taken []time.Time
			for _, pause := range pauses {
				time.Sleep(time.Duration(pause))
				if wait := n.Take(); wait > 0 {
					time.Sleep(wait)
					require.Zero(t, n.Take(), "it said how long")
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
	n := budget.ForNode(budget.Budget{PerMinute: 1, Burst: 1})
	require.Positive(t, n.Take(), "it begins empty")
	n.GiveBack()
	n.GiveBack() // never more than the burst
	require.Zero(t, n.Take())
	assert.InDelta(t, time.Minute, n.Take(), float64(time.Second))
}

// TestClocksThatDiffer: of two nodes that spend of one bucket, one is ahead. What it is ahead is not counted again with
// each token.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	b, start := budget.Budget{PerMinute: 60, Burst: 100}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s, taken := budget.Bucket{Tokens: 100, At: start}, 0
	const minutes = 2
	for step := range minutes * 600 { // the nodes by turns, ten times a second
		now := start.Add(time.Duration(step) * 100 * time.Millisecond)
		if step%2 == 1 {
			now = now.Add(budget.ClockSkew)
		}
		if next, wait := b.Take(s, now); wait == 0 {
			s, taken = next, taken+1
		}
	}
	most := 100 + 60*minutes
	assert.GreaterOrEqual(t, taken, most-1)
	assert.LessOrEqual(t, taken, most+int(budget.ClockSkew.Minutes()*60), "the difference counts once")
}

// TestCrashLoop: a controller that starts over and over acts no more often than its budget says.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		taken := 0
		const lives, life = 60, 10 * time.Second
		for range lives {
			n := budget.ForNode(budget.Budget{PerMinute: 6, Burst: 10})
			for begin := time.Now(); time.Since(begin) < life; time.Sleep(100 * time.Millisecond) {
				if n.Take() == 0 {
					taken++
				}
			}
			time.Sleep(time.Second) // until it is started again
		}
		assert.LessOrEqual(t, float64(taken), 6*(lives*life).Minutes())
	})
}
