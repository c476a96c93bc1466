package repairflags

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseExitCodes(t *testing.T) {
	t.Parallel()
	codes, err := parseExitCodes("126, 95")
	require.NoError(t, err)
	assert.Equal(t, []int32{126, 95}, codes)
	for _, bad := range []string{"", "0", "256", "-1", "126;95", "x"} {
		_, err := parseExitCodes(bad)
		assert.Error(t, err, "%q", bad)
	}
}
