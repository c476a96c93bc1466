package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// PrefixSet is a set of addresses of both families: none, those in some prefixes, or all. The zero value is unset, as that of [PortSet].
type PrefixSet struct {
	all, none bool
	prefixes  []netip.Prefix
}

// AllPrefixes is the set of every address.
func AllPrefixes() PrefixSet { return PrefixSet{all: true} }

// NoPrefixes is the set of no address.
func NoPrefixes() PrefixSet { return PrefixSet{none: true} }

// Prefixes is the set of the addresses in any of the prefixes. It clears host bits, drops duplicates, and keeps the
// order, which becomes that of the rules. Without any it is unset. It panics on an invalid prefix, such as the zero netip.Prefix.
func Prefixes(prefixes ...netip.Prefix) PrefixSet {
	out := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		if !p.IsValid() {
			panic("redirect: invalid prefix in a PrefixSet")
		}
		out[i] = p.Masked()
	}
	return PrefixSet{prefixes: distinct(out)}
}

// All reports whether the set holds every address.
func (s PrefixSet) All() bool { return s.all }

// IsZero reports whether the set is unset.
func (s PrefixSet) IsZero() bool { return s.Empty() && !s.none }

// Empty reports whether the set holds no address: it is none, or unset.
func (s PrefixSet) Empty() bool { return !s.all && len(s.prefixes) == 0 }

// Family returns the set's prefixes of one family; nil when the set is all.
func (s PrefixSet) Family(f ruleset.Family) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s.prefixes {
		if ruleset.FamilyOf(p.Addr()) == f {
			out = append(out, p)
		}
	}
	return out
}

// hasLoopback reports whether a prefix lies in the loopback range, 127.0.0.0/8 or ::1. All is not a loopback range.
func (s PrefixSet) hasLoopback() bool {
	return slices.ContainsFunc(s.prefixes, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
}

// Union returns the set of the addresses in either, with o's prefixes last.
func (s PrefixSet) Union(o PrefixSet) PrefixSet {
	if s.all || o.all {
		return AllPrefixes()
	}
	all := distinct(slices.Concat(s.prefixes, o.prefixes))
	return PrefixSet{none: len(all) == 0 && (s.none || o.none), prefixes: all}
}

// Equal reports whether both hold the same prefixes in the same order.
func (s PrefixSet) Equal(o PrefixSet) bool {
	return s.all == o.all && slices.Equal(s.prefixes, o.prefixes)
}

// String returns "*", "none", "unset" or a list such as "10.0.0.0/8,fd00::/8".
func (s PrefixSet) String() string {
	return setText(s.all, s.none, s.prefixes, netip.Prefix.String)
}

// MarshalJSON writes "*" for all, null for unset, else an array of prefixes.
func (s PrefixSet) MarshalJSON() ([]byte, error) {
	if s.IsZero() {
		return []byte("null"), nil
	}
	return marshalSet(s.all, s.prefixes)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *PrefixSet) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*s = PrefixSet{}
		return nil
	}
	all, prefixes, err := unmarshalSet[netip.Prefix](b)
	if err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return !p.IsValid() }) {
		err = errors.New("an empty element")
	}
	if err != nil {
		return fmt.Errorf("prefixes: %w", err)
	}
	*s = Prefixes(prefixes...)
	s.all, s.none = all, !all && len(s.prefixes) == 0
	return nil
}
