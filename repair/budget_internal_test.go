package repair

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestClocksThatDiffer: of two nodes that spend of one bucket, one is ahead. What it is ahead is not counted again with
// each token.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	b, start := Budget{PerMinute: 60, Burst: 100}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s, taken := bucket{100, start}, 0
	const minutes = 2
	for step := range minutes * 600 { // the nodes by turns, ten times a second
		now := start.Add(time.Duration(step) * 100 * time.Millisecond)
		if step%2 == 1 {
			now = now.Add(clockSkew)
		}
		if next, wait := b.take(s, now); wait == 0 {
			s, taken = next, taken+1
		}
	}
	most := 100 + 60*minutes
	assert.GreaterOrEqual(t, taken, most-1)
	assert.LessOrEqual(t, taken, most+int(clockSkew.Minutes()*60), "the difference counts once")
}
