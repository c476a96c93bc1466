package repair

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Budget bounds a pace: Burst actions at once, and PerMinute in the long run. It
// begins empty and fills at its rate, so that a controller that is started again
// and again acts no faster than one that runs on.
// The zero value allows nothing; see [Unlimited].
type Budget struct {
	PerMinute float64
	Burst     int
}

// Unlimited is the Budget without bounds.
var Unlimited = Budget{Burst: -1}

// Validate says what is wrong with the budget.
func (b Budget) Validate() error {
	if b != Unlimited && (b.PerMinute <= 0 || b.Burst < 1) {
		return fmt.Errorf("budget of %v a minute and %d at once: both must be positive", b.PerMinute, b.Burst)
	}
	return nil
}

// Taker gives leave to act.
type Taker interface {
	// Take takes one token and returns 0, or returns how long to wait before
	// asking again and takes none.
	Take(ctx context.Context) (wait time.Duration, err error)
	// Return gives back a token that was not used.
	Return(ctx context.Context) error
}

// bucket is a token bucket's state at a time.
type bucket struct {
	Tokens float64
	At     time.Time
}

// take refills the bucket up to now and takes a token, or says how long until
// there is one.
func (b Budget) take(s bucket, now time.Time) (bucket, time.Duration) {
	if b == Unlimited {
		return s, 0
	}
	s = b.refill(s, now)
	// A nanosecond's rounding must not make a token a little less than one.
	const almost = 1 - 1e-6
	if s.Tokens < almost {
		return s, time.Duration((1 - s.Tokens) / b.PerMinute * float64(time.Minute))
	}
	s.Tokens = max(0, s.Tokens-1)
	return s, 0
}

// clockSkew is by how much the clocks of a cluster's nodes may differ without
// anybody doing anything about it: for so long a bucket of a faster clock does not fill.
const clockSkew = 10 * time.Second

// refill brings the bucket up to now. One that is not known is empty. One of the
// future, because a clock was wrong, is taken for one of now: it must not keep the
// budget from filling until that time has come. In no case are there more tokens
// than the burst.
func (b Budget) refill(s bucket, now time.Time) bucket {
	if s.At.IsZero() {
		return bucket{0, now}
	}
	tokens, at := s.Tokens, now
	switch d := now.Sub(s.At); {
	case d > 0:
		tokens += d.Minutes() * b.PerMinute
	case -d <= clockSkew:
		at = s.At // else two clocks that differ would count the difference again and again
	}
	return bucket{min(float64(b.Burst), tokens), at}
}

// NodeBudget is a [Budget] within this process. Make one with [NewNodeBudget].
type NodeBudget struct {
	budget Budget
	mu     sync.Mutex
	state  bucket
}

// NewNodeBudget returns an empty budget, which fills from now on.
func NewNodeBudget(b Budget) *NodeBudget { return &NodeBudget{budget: b, state: bucket{0, time.Now()}} }

// Take implements [Taker]; it never fails.
func (n *NodeBudget) Take(context.Context) (time.Duration, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var wait time.Duration
	n.state, wait = n.budget.take(n.state, time.Now())
	return wait, nil
}

// Return implements [Taker]; it never fails.
func (n *NodeBudget) Return(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state.Tokens = min(float64(n.budget.Burst), n.state.Tokens+1)
	return nil
}
