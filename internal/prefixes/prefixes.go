// Package prefixes keeps lists of prefixes as the kernel's sets of intervals need them: in order, and none within another.
package prefixes

import (
	"cmp"
	"net/netip"
	"slices"
)

// Merge returns the prefixes of one family in order, without host bits and without those that lie in others. It may return its argument,
// which it does not change.
func Merge(list []netip.Prefix) []netip.Prefix {
	if Merged(list) {
		return list
	}
	all := make([]netip.Prefix, len(list))
	for i, p := range list {
		all[i] = p.Masked()
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out := all[:0]
	for _, p := range all {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) { // prefixes nest or are disjoint, and the larger sorts first
			out = append(out, p)
		}
	}
	return slices.Clip(out)
}

// Merged reports whether the list is as Merge returns it.
func Merged(list []netip.Prefix) bool {
	for i, p := range list {
		if p != p.Masked() || i > 0 && (list[i-1].Overlaps(p) || !list[i-1].Addr().Less(p.Addr())) {
			return false
		}
	}
	return true
}

// Find returns the index of the prefix that contains the address, in a list that Merge returned; -1 if there is none.
func Find(list []netip.Prefix, a netip.Addr) int {
	i, found := slices.BinarySearchFunc(list, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && list[i].Contains(a) {
		return i
	}
	return -1
}

// Last returns the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Run returns the first and the last of the neighbours without a gap between them, of which one is at index i of a list that Merge returned.
func Run(list []netip.Prefix, i int) (first, last netip.Prefix) {
	from, to := i, i
	for from > 0 && Last(list[from-1]).Next() == list[from].Addr() {
		from--
	}
	for to+1 < len(list) && Last(list[to]).Next() == list[to+1].Addr() {
		to++
	}
	return list[from], list[to]
}
