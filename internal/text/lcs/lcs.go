// Package lcs finds a longest common subsequence of two lists, in bounded time and
// memory: whoever writes rules in a pod's namespace may write a hundred thousand.
package lcs

import "slices"

// maxCells bounds the table of a longest common subsequence, to 1 MiB: two lists of
// 500 elements, after their common beginning.
const maxCells = 1 << 18

// Lists are two lists of N and M elements.
type Lists struct {
	N, M int
	// Same reports whether element i of the first and j of the second are the same.
	Same func(i, j int) bool
	// First and Second return an element's key, for long lists: elements that are
	// the same have the same key. "" means that an element has no equal.
	First, Second func(i int) string
	// SecondFirst makes the second list's element come first where either may.
	SecondFirst bool
}

// Pair is an element of the first list and one of the second that are the same.
type Pair struct{ I, J int }

// Strings are two lists of strings.
func Strings(a, b []string) Lists {
	return Lists{
		N: len(a), M: len(b),
		Same:  func(i, j int) bool { return a[i] == b[j] },
		First: func(i int) string { return a[i] }, Second: func(j int) string { return b[j] },
	}
}

// Differences calls first with each element of the first list that is in no pair of [Lists.Pairs], and second with each
// such element of the second, in order. Of a run of both, the first list's come first, or with SecondFirst the second's.
func (l Lists) Differences(first, second func(i int)) {
	i, j := 0, 0
	for _, p := range append(l.Pairs(), Pair{l.N, l.M}) {
		for ; l.SecondFirst && j < p.J; j++ {
			second(j)
		}
		for ; i < p.I; i++ {
			first(i)
		}
		for ; j < p.J; j++ {
			second(j)
		}
		i, j = p.I+1, p.J+1
	}
}

// Pairs returns a longest common subsequence, in order. For long lists it takes
// N log N steps, and may be shorter where elements repeat.
func (l Lists) Pairs() []Pair {
	var pairs []Pair
	head := 0
	for head < l.N && head < l.M && l.Same(head, head) {
		pairs = append(pairs, Pair{head, head})
		head++
	}
	n, m := l.N-head, l.M-head
	switch {
	case n == 0 || m == 0:
		return pairs
	case n <= maxCells/m:
		return l.table(pairs, head, n, m)
	}
	return append(pairs, longestRise(l.candidates(head))...)
}

// table takes n×m steps.
func (l Lists) table(pairs []Pair, head, n, m int) []Pair {
	cells := make([]int32, (n+1)*(m+1))
	at := func(i, j int) *int32 { return &cells[i*(m+1)+j] }
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if l.Same(head+i, head+j) {
				*at(i, j) = *at(i+1, j+1) + 1
			} else {
				*at(i, j) = max(*at(i+1, j), *at(i, j+1))
			}
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		skipFirst, skipSecond := *at(i+1, j), *at(i, j+1)
		switch {
		case l.Same(head+i, head+j):
			pairs = append(pairs, Pair{head + i, head + j})
			i, j = i+1, j+1
		case skipFirst > skipSecond || skipFirst == skipSecond && !l.SecondFirst:
			i++
		default:
			j++
		}
	}
	return pairs
}

// candidates pairs the first of several equal elements with the first of the other
// list, the second with the second, and so on, in the order of the first list.
func (l Lists) candidates(head int) []Pair {
	where := make(map[string][]int, l.M-head)
	for j := head; j < l.M; j++ {
		if key := l.Second(j); key != "" {
			where[key] = append(where[key], j)
		}
	}
	var pairs []Pair
	for i := head; i < l.N; i++ {
		key := l.First(i)
		if places := where[key]; len(places) > 0 {
			where[key] = places[1:]
			if l.Same(i, places[0]) {
				pairs = append(pairs, Pair{i, places[0]})
			}
		}
	}
	return pairs
}

// longestRise returns the longest subsequence of pairs that rises by J; they rise by I.
func longestRise(pairs []Pair) []Pair {
	// ends[k] is the pair with the lowest J that ends a rise of k+1, and before[p] the one before it.
	var ends []int
	before := make([]int, len(pairs))
	for p, pair := range pairs {
		k, _ := slices.BinarySearchFunc(ends, pair.J, func(end, j int) int { return pairs[end].J - j })
		before[p] = -1
		if k > 0 {
			before[p] = ends[k-1]
		}
		if k == len(ends) {
			ends = append(ends, p)
		} else {
			ends[k] = p
		}
	}
	if len(ends) == 0 {
		return nil
	}
	rise := make([]Pair, len(ends))
	for k, p := len(ends)-1, ends[len(ends)-1]; k >= 0; k, p = k-1, before[p] {
		rise[k] = pairs[p]
	}
	return rise
}
