package redirect

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCountingDoesNotOverflow: a sum or product that no int holds is the most
// that one does, not a small number.
func TestCountingDoesNotOverflow(t *testing.T) {
	assert.Equal(t, 12, times(3, 4))
	assert.Equal(t, 7, plus(3, 4))
	assert.Zero(t, times(0, math.MaxInt))
	assert.Zero(t, times(math.MaxInt, 0))
	assert.Equal(t, math.MaxInt, times(1<<32, 1<<32))
	assert.Equal(t, math.MaxInt, times(math.MaxInt, 2))
	assert.Equal(t, math.MaxInt, plus(math.MaxInt, 1))
	assert.Equal(t, math.MaxInt, plus(math.MaxInt-1, 1))
}
