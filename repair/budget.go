package repair

import (
	"fmt"
	"sync"
	"time"
)

// Budget limits a rate: Burst actions at once and PerMinute in the long run. It starts empty, so that a controller that
// keeps restarting acts no faster than one that keeps running.
type Budget struct {
	PerMinute float64
	Burst     int
}

// Unlimited is the Budget without limits.
var Unlimited = Budget{Burst: -1}

// Validate returns an error unless both fields are positive or the budget is [Unlimited].
func (b Budget) Validate() error {
	if b != Unlimited && (b.PerMinute <= 0 || b.Burst < 1) {
		return fmt.Errorf("budget of %v a minute and %d at once: both must be positive", b.PerMinute, b.Burst)
	}
	return nil
}

// bucket is the state of a token bucket at a time. The zero bucket is not known.
type bucket struct {
	tokens float64
	at     time.Time
}

// take refills the bucket and takes a token, or returns how long until there is one.
func (b Budget) take(s bucket, now time.Time) (bucket, time.Duration) {
	if b == Unlimited {
		return s, 0
	}
	s = b.refill(s, now)
	// Rounding to a nanosecond must not leave slightly less than a token.
	const almost = 1 - 1e-6
	if s.tokens < almost {
		return s, time.Duration((1 - s.tokens) / b.PerMinute * float64(time.Minute))
	}
	s.tokens = max(0, s.tokens-1)
	return s, 0
}

// giveBack refills the bucket and returns a token to it.
func (b Budget) giveBack(s bucket, now time.Time) (bucket, time.Duration) {
	s = b.refill(s, now)
	s.tokens = min(float64(b.Burst), s.tokens+1)
	return s, 0
}

// clockSkew is the tolerated difference between the clocks of two nodes: for this long, a bucket from a faster clock does
// not fill.
const clockSkew = 10 * time.Second

// refill adds the tokens due until now, up to the burst. An unknown bucket is empty. A bucket from the future, written
// with a wrong clock, counts as one from now; otherwise it would not fill until then.
func (b Budget) refill(s bucket, now time.Time) bucket {
	if s.at.IsZero() {
		return bucket{0, now}
	}
	tokens, at := s.tokens, now
	switch d := now.Sub(s.at); {
	case d > 0:
		tokens += d.Minutes() * b.PerMinute
	case -d <= clockSkew:
		at = s.at // otherwise the difference between two clocks would count again and again
	}
	return bucket{min(float64(b.Burst), tokens), at}
}

// nodeBudget applies a Budget within this process.
type nodeBudget struct {
	Budget

	mu    sync.Mutex
	state bucket
}

// newNodeBudget returns an empty budget.
func newNodeBudget(b Budget) *nodeBudget { return &nodeBudget{Budget: b, state: bucket{0, time.Now()}} }

// take takes a token, or returns how long until there is one.
func (n *nodeBudget) take() (wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, wait = n.Budget.take(n.state, time.Now())
	return wait
}

// giveBack returns a token that was not used.
func (n *nodeBudget) giveBack() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, _ = n.Budget.giveBack(n.state, time.Now())
}
