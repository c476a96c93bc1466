package explain_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
)

// Rules are said to be the same only if first packets and whole connections are.
func TestComparisonText(t *testing.T) {
	said := func(r compare.Report) string {
		var b strings.Builder
		_, err := explain.Comparison{Selected: true, Report: r}.WriteTo(&b)
		require.NoError(t, err)
		return b.String()
	}
	assert.Contains(t, said(compare.Report{Packets: 9, Connections: 4}), "the same: 9 packets")
	for name, r := range map[string]compare.Report{
		"packets":     {Packets: 9, Connections: 4, Differences: make([]compare.Difference, 1)},
		"connections": {Packets: 9, Connections: 4, ConnectionDifferences: make([]compare.ConnectionDifference, 1)},
	} {
		assert.NotContains(t, said(r), "the same:", name)
		assert.Contains(t, said(r), "packets differ", name)
		assert.False(t, explain.Comparison{Report: r}.Same(), name)
	}
}
