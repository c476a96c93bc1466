package news

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNewsIsOneLine that begins with its code, once, whatever the reason says.
func TestNewsIsOneLine(t *testing.T) {
	all := NotReady("repair", errors.New("repair: missing permission: a\nmissing permission: b"))
	require.Len(t, all, 1)
	assert.Equal(t, "repair: missing permission: a; missing permission: b", all[0].String())
	require.EqualError(t, Err(append(all, Refused("x"))), all[0].String())
	assert.Equal(t, []string{Refused("x").String()}, Warnings(append(all, Refused("x"))))
	assert.Empty(t, NotReady("repair", nil))
	assert.NoError(t, Err(nil))
}
