// Package budget limits the rate of what is done to pods, for those of each namespace by itself, so that what is done to one namespace's holds
// back no other's.
package budget

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Budget limits a rate: Burst actions at once and PerMinute in the long run. It starts empty, so that a controller that
// keeps restarting acts no faster than one that keeps running.
type Budget struct {
	PerMinute float64
	Burst     int
}

// Unlimited is the Budget without limits.
var Unlimited = Budget{Burst: -1}

// Default allows as many at once as a node has pods by default: after a boot all of them may be broken.
var Default = Budget{PerMinute: 120, Burst: 110}

// Validate returns an error unless both fields are positive or the budget is [Unlimited].
func (b Budget) Validate() error {
	if b != Unlimited && (b.PerMinute <= 0 || b.Burst < 1) {
		return fmt.Errorf("budget of %v a minute and %d at once: both must be positive", b.PerMinute, b.Burst)
	}
	return nil
}

// Namespaces has a budget for each namespace. It is safe for concurrent use.
type Namespaces struct {
	mu     sync.Mutex
	budget Budget
	since  time.Time
	byName map[string]*rate.Limiter
}

// ForNamespaces returns budgets that are all empty now. A namespace's fills from now on, whenever it is first asked for.
func ForNamespaces(b Budget) *Namespaces {
	n := &Namespaces{}
	n.Limit(b)
	return n
}

// Limit replaces the budgets by others, which are empty. It does nothing if they are as large.
func (n *Namespaces) Limit(b Budget) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.budget != b {
		n.budget, n.since, n.byName = b, time.Now(), map[string]*rate.Limiter{}
	}
}

// limiter returns a namespace's. Those that are full are as good as new, so they are forgotten: namespaces come and go.
func (n *Namespaces) limiter(namespace string) *rate.Limiter {
	l := n.byName[namespace]
	if l == nil {
		maps.DeleteFunc(n.byName, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= float64(n.budget.Burst) })
		l = rate.NewLimiter(rate.Limit(n.budget.PerMinute/time.Minute.Seconds()), n.budget.Burst)
		l.AllowN(n.since, n.budget.Burst)
		n.byName[namespace] = l
	}
	return l
}

// Take takes a token, or returns how long until there is one.
func (n *Namespaces) Take(namespace string) (wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.budget == Unlimited {
		return 0
	}
	return take(n.limiter(namespace), time.Now())
}

// Turn takes a token, and returns when it may be used: now, or once there is one. Who waits for that keeps nobody behind it asking.
func (n *Namespaces) Turn(namespace string) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.budget == Unlimited {
		return now
	}
	return now.Add(n.limiter(namespace).ReserveN(now, 1).DelayFrom(now))
}

// GiveBack returns a token that was not used.
func (n *Namespaces) GiveBack(namespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.budget != Unlimited {
		n.limiter(namespace).AllowN(time.Now(), -1) // a Reservation cannot be canceled once its time has come
	}
}

func take(l *rate.Limiter, now time.Time) (wait time.Duration) {
	r := l.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// Changes bounds the looks at one pod that its changes cause: 20 at once, since one that starts changes some ten times, and one a second in the
// long run. The zero value is full. It is not safe for concurrent use, and copies share what is left.
type Changes struct{ limiter *rate.Limiter }

// Take returns how long the look at a change has to wait.
func (c *Changes) Take(now time.Time) (wait time.Duration) {
	if c.limiter == nil {
		c.limiter = rate.NewLimiter(1, 20)
	}
	return take(c.limiter, now)
}
