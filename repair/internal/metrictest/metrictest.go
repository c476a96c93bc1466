// Package metrictest reads a registry's metrics for tests.
package metrictest

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Counts are the values of a counter or gauge that are not 0, by the values of its labels, which are joined by spaces
// in the order of their names. The labels named in without are left out, and what is then alike is added up.
func Counts(t testing.TB, g prometheus.Gatherer, name string, without ...string) map[string]int {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	got := map[string]int{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if !slices.Contains(without, l.GetName()) {
					labels = append(labels, l.GetValue())
				}
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue(); v != 0 {
				got[strings.Join(labels, " ")] += int(v)
			}
		}
	}
	return got
}
