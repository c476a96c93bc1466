package budget_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/budget"
)

// TestGroups: what one group has used up, and what holds it back, is none of another's, also if that is asked for much later; one that
// was dropped begins anew.
func TestGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		groups := budget.ForGroups(budget.Budget{PerMinute: 6, Burst: 3}, 0.5, 2, time.Minute)
		assert.Positive(t, groups.Of("noisy").Take(), "it begins empty")
		time.Sleep(time.Minute)
		for range 3 {
			assert.Zero(t, groups.Of("noisy").Take())
		}
		assert.Positive(t, groups.Of("noisy").Take())
		assert.Equal(t, time.Minute, groups.Of("noisy").Check(4, 3, time.Now()))
		assert.Zero(t, groups.Of("quiet").Take(), "filled since the start")
		assert.Zero(t, groups.Of("quiet").Check(4, 2, time.Now()))
		time.Sleep(30 * time.Second)
		assert.Equal(t, 30*time.Second, groups.Of("noisy").Check(4, 3, time.Now()), "it is remembered")
		groups.Keep(map[string]bool{"quiet": true})
		assert.Equal(t, time.Minute, groups.Of("noisy").Check(4, 3, time.Now()), "it was dropped")
	})
}
