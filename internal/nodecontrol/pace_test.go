package nodecontrol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestPace: some are free, then each wait is twice the one before up to a bound, whatever asks meanwhile; a quiet time ends that.
func TestPace(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var p pace
	var waits []time.Duration
	for range 12 {
		var waited time.Duration
		for wait := p.wait(freeTurns, now); wait > 0; wait = p.wait(freeTurns, now) {
			step := min(wait, 700*time.Millisecond) // asked too early
			now, waited = now.Add(step), waited+step
		}
		p.count(now)
		waits = append(waits, waited)
	}
	s := time.Second
	assert.Equal(t, []time.Duration{0, 0, 0, s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 30 * s, 30 * s}, waits)
	now = now.Add(paceForgets)
	for range freeTurns {
		assert.Zero(t, p.wait(freeTurns, now))
		p.count(now)
	}
	assert.Equal(t, s, p.wait(freeTurns, now))
	p.times = 1 << 40
	assert.Equal(t, paceMost, p.wait(freeTurns, now), "no overflow")
}
