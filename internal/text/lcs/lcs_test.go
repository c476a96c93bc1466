package lcs_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/text/lcs"
)

func lists(a, b []string) lcs.Lists {
	return lcs.Lists{
		N: len(a), M: len(b),
		Same:  func(i, j int) bool { return a[i] == b[j] },
		First: func(i int) string { return a[i] }, Second: func(j int) string { return b[j] },
	}
}

func TestPairs(t *testing.T) {
	a, b := []string{"x", "a", "b", "c"}, []string{"x", "c", "a", "b", "d"}
	assert.Equal(t, []lcs.Pair{{0, 0}, {1, 2}, {2, 3}}, lists(a, b).Pairs())
	assert.Empty(t, lists(nil, b).Pairs())
	l := lists([]string{"a", "b"}, []string{"b", "a"})
	assert.Equal(t, []lcs.Pair{{1, 0}}, l.Pairs())
	l.SecondFirst = true
	assert.Equal(t, []lcs.Pair{{0, 1}}, l.Pairs())
}

// TestPairsOfLongLists: what is found in long lists is a common subsequence too,
// the longest one where elements do not repeat, and takes no table.
func TestPairsOfLongLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 3000
		var a, b []string
		dropA, dropB := rapid.IntRange(2, 50).Draw(t, "of first"), rapid.IntRange(2, 50).Draw(t, "of second")
		repeat := rapid.IntRange(1, 10).Draw(t, "repeats")
		both := 0
		for i := range n {
			element := fmt.Sprint(i / repeat)
			if i%dropA != 1 {
				a = append(a, element)
			}
			if i%dropB != 0 {
				b = append(b, element)
			}
			if i%dropA != 1 && i%dropB != 0 {
				both++
			}
		}
		pairs := lists(a, b).Pairs()
		last := lcs.Pair{I: -1, J: -1}
		for _, p := range pairs {
			require.Equal(t, a[p.I], b[p.J])
			require.True(t, p.I > last.I && p.J > last.J, "%v after %v", p, last)
			last = p
		}
		require.GreaterOrEqual(t, len(pairs), both)
	})
}

func TestMemory(t *testing.T) {
	var a, b []string
	for i := range 50_000 {
		a, b = append(a, fmt.Sprint(i)), append(b, fmt.Sprint(-i))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	assert.Len(t, lists(a, b).Pairs(), 1)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20))
}
