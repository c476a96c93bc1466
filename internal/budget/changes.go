package budget

import "time"

// changes bounds the consequences of one pod's changes: a pod that starts changes some ten times.
var changes = Budget{PerMinute: 60, Burst: 20}

// Changes bounds the looks at one pod that its changes cause: 20 at once, and one a second in the long run. The zero value is full.
type Changes struct{ state Bucket }

// Take returns how long the look at a change has to wait.
func (c *Changes) Take(now time.Time) (wait time.Duration) {
	if c.state.At.IsZero() {
		c.state = Bucket{Tokens: float64(changes.Burst), At: now}
	}
	c.state, wait = changes.Take(c.state, now)
	return wait
}
