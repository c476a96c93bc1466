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
	b, start := Budget{PerMinute: 6, Burst: 5}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s, taken := bucket{0, start}, 0
	for step := range 6000 { // ten minutes, the nodes by turns
		now := start.Add(time.Duration(step) * 100 * time.Millisecond)
		if step%2 == 1 {
			now = now.Add(clockSkew)
		}
		if next, wait := b.take(s, now); wait == 0 {
			s, taken = next, taken+1
		}
	}
	assert.GreaterOrEqual(t, taken, 58)
	assert.LessOrEqual(t, taken, 62)
}
