package longtest

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOf(t *testing.T) {
	few := []int{1, 2, 3}[:2]
	if On {
		assert.Equal(t, []int{1, 2, 8, 9}, Of(few, 8, 9))
		assert.Equal(t, 9, Rounds(2, 9))
	} else {
		assert.Equal(t, few, Of(few, 8, 9))
		assert.Equal(t, 2, Rounds(2, 9))
	}
	assert.Equal(t, []int{1, 2, 3}, few[:3], "what is given is left alone")
}
