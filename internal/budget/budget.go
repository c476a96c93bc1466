// Package budget keeps controllers from doing harm at speed: a [Budget] limits a rate, and a [Breaker] lets only trials through
// while a large share of what is watched is broken.
package budget

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

// Bucket is the state of a token bucket at a time. The zero Bucket is not known.
type Bucket struct {
	Tokens float64
	At     time.Time
}

// Take refills the bucket and takes a token, or returns how long until there is one.
func (b Budget) Take(s Bucket, now time.Time) (Bucket, time.Duration) {
	if b == Unlimited {
		return s, 0
	}
	s = b.refill(s, now)
	// Rounding to a nanosecond must not leave slightly less than a token.
	const almost = 1 - 1e-6
	if s.Tokens < almost {
		return s, time.Duration((1 - s.Tokens) / b.PerMinute * float64(time.Minute))
	}
	s.Tokens = max(0, s.Tokens-1)
	return s, 0
}

// GiveBack refills the bucket and returns a token to it.
func (b Budget) GiveBack(s Bucket, now time.Time) (Bucket, time.Duration) {
	s = b.refill(s, now)
	s.Tokens = min(float64(b.Burst), s.Tokens+1)
	return s, 0
}

// ClockSkew is the tolerated difference between the clocks of two nodes: for this long, a bucket from a faster clock does
// not fill.
const ClockSkew = 10 * time.Second

// refill adds the tokens due until now, up to the burst. An unknown bucket is empty. A bucket from the future, written
// with a wrong clock, counts as one from now; otherwise it would not fill until then.
func (b Budget) refill(s Bucket, now time.Time) Bucket {
	if s.At.IsZero() {
		return Bucket{0, now}
	}
	tokens, at := s.Tokens, now
	switch d := now.Sub(s.At); {
	case d > 0:
		tokens += d.Minutes() * b.PerMinute
	case -d <= ClockSkew:
		at = s.At // otherwise the difference between two clocks would count again and again
	}
	return Bucket{min(float64(b.Burst), tokens), at}
}

// Node applies a Budget within this process. It is safe for concurrent use.
type Node struct {
	Budget

	mu    sync.Mutex
	state Bucket
}

// ForNode returns an empty budget.
func ForNode(b Budget) *Node { return &Node{Budget: b, state: Bucket{0, time.Now()}} }

// Take takes a token, or returns how long until there is one.
func (n *Node) Take() (wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, wait = n.Budget.Take(n.state, time.Now())
	return wait
}

// GiveBack returns a token that was not used.
func (n *Node) GiveBack() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, _ = n.Budget.GiveBack(n.state, time.Now())
}
