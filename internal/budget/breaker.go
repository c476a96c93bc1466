package budget

import (
	"sync"
	"time"
)

// Breaker holds actions back while too much is broken for single faults to be the cause, as acting would then do more harm
// than good. It is safe for concurrent use.
type Breaker struct {
	// MaxShare is the share of all that may be broken, from 0 to 1.
	MaxShare float64
	// MinBroken is the number of broken ones from which MaxShare applies.
	MinBroken int
	// TrialInterval is the time between the actions that are let through nevertheless.
	TrialInterval time.Duration

	mu    sync.Mutex
	since time.Time // when too many became broken, or of the latest trial
}

// Check returns 0 if one may be acted on now. While too many are broken, it returns 0 to one caller per TrialInterval, so
// that a node on which all are broken for a reason that has passed recovers, slowly at first, and to the others how long
// to wait.
func (b *Breaker) Check(all, broken int, now time.Time) (wait time.Duration) {
	return b.Let(b.Trips(all, broken), now)
}

// Trips reports whether too many are broken.
func (b *Breaker) Trips(all, broken int) bool {
	return broken >= b.MinBroken && float64(broken) > b.MaxShare*float64(all)
}

// Let is Check for a caller that knows whether too many are broken.
func (b *Breaker) Let(tooMany bool, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !tooMany {
		b.since = time.Time{}
		return 0
	}
	if b.since.IsZero() {
		b.since = now
	}
	if wait := b.TrialInterval - now.Sub(b.since); wait > 0 {
		return wait
	}
	b.since = now
	return 0
}
