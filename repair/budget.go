package repair

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Budget bounds a pace: Burst actions at once, and PerMinute in the long run.
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
// there is one. A clock that goes back refills nothing.
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

func (b Budget) refill(s bucket, now time.Time) bucket {
	if s.At.IsZero() {
		return bucket{float64(b.Burst), now}
	}
	if d := now.Sub(s.At); d > 0 {
		s = bucket{min(float64(b.Burst), s.Tokens+d.Minutes()*b.PerMinute), now}
	}
	return s
}

// NodeBudget is a [Budget] within this process. Make one with [NewNodeBudget].
type NodeBudget struct {
	budget Budget
	mu     sync.Mutex
	state  bucket
}

// NewNodeBudget returns a full budget.
func NewNodeBudget(b Budget) *NodeBudget { return &NodeBudget{budget: b} }

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
