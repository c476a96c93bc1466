package redirect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// PortSet is a set of ports: none, some, or all. The zero value is unset, which holds no port either, and which no field that says what is
// captured may be: none is a choice, [NoPorts].
type PortSet struct {
	all, none bool
	ranges    []ruleset.PortRange // see newPortSet
}

// AllPorts is the set of every port.
func AllPorts() PortSet { return PortSet{all: true} }

// NoPorts is the set of no port.
func NoPorts() PortSet { return PortSet{none: true} }

// Ports is the set of the given ports; without any it is unset.
func Ports(ports ...uint16) PortSet {
	ranges := make([]ruleset.PortRange, len(ports))
	for i, p := range ports {
		ranges[i] = ruleset.Port(p)
	}
	return newPortSet(ranges)
}

// PortRanges is the set of the ports in any of the ranges. A range whose Last is below its First holds nothing.
func PortRanges(ranges ...ruleset.PortRange) PortSet { return newPortSet(slices.Clone(ranges)) }

// newPortSet takes ownership of ranges. It makes them canonical, so that equal sets have equal rules: sorted and
// joined, except that two neighbouring ports stay apart, since "80,81" reads better than a range.
func newPortSet(ranges []ruleset.PortRange) PortSet {
	ranges = slices.DeleteFunc(ranges, func(r ruleset.PortRange) bool { return r.Last < r.First })
	slices.SortFunc(ranges, func(a, b ruleset.PortRange) int { return cmp.Compare(a.First, b.First) })
	joined := ranges[:0]
	for _, r := range ranges {
		if n := len(joined); n > 0 && uint32(r.First) <= uint32(joined[n-1].Last)+1 {
			joined[n-1].Last = max(joined[n-1].Last, r.Last)
			continue
		}
		joined = append(joined, r)
	}
	var set PortSet
	for _, r := range joined {
		if r.Last-r.First == 1 {
			set.ranges = append(set.ranges, ruleset.Port(r.First))
			r.First = r.Last
		}
		set.ranges = append(set.ranges, r)
	}
	return set
}

// All reports whether the set holds every port.
func (s PortSet) All() bool { return s.all }

// IsZero reports whether the set is unset.
func (s PortSet) IsZero() bool { return s.Empty() && !s.none }

// Empty reports whether the set holds no port: it is none, or unset.
func (s PortSet) Empty() bool { return !s.all && len(s.ranges) == 0 }

// Ranges returns the set's ranges, sorted; nil for all and for none.
func (s PortSet) Ranges() []ruleset.PortRange { return slices.Clone(s.ranges) }

// Contains reports whether p is in the set.
func (s PortSet) Contains(p uint16) bool {
	return s.all || slices.ContainsFunc(s.ranges, func(r ruleset.PortRange) bool { return r.Contains(p) })
}

// Union returns the set of the ports in either.
func (s PortSet) Union(o PortSet) PortSet {
	if s.all || o.all {
		return AllPorts()
	}
	union := newPortSet(slices.Concat(s.ranges, o.ranges))
	union.none = len(union.ranges) == 0 && (s.none || o.none)
	return union
}

// Equal reports whether both hold the same ports.
func (s PortSet) Equal(o PortSet) bool { return s.all == o.all && slices.Equal(s.ranges, o.ranges) }

// String returns "*", "none", "unset" or a list such as "80,8000-8100".
func (s PortSet) String() string {
	return setText(s.all, s.none, s.ranges, formatRange)
}

// setText is the text of a set: "*", "none", "unset" or its elements.
func setText[T any](all, none bool, elements []T, text func(T) string) string {
	switch {
	case all:
		return "*"
	case none:
		return "none"
	case len(elements) == 0:
		return "unset"
	}
	parts := make([]string, len(elements))
	for i, e := range elements {
		parts[i] = text(e)
	}
	return strings.Join(parts, ",")
}

func formatRange(r ruleset.PortRange) string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalJSON writes "*" for all, null for unset, else an array of numbers and "first-last".
func (s PortSet) MarshalJSON() ([]byte, error) {
	if s.IsZero() {
		return []byte("null"), nil
	}
	out := make([]any, len(s.ranges))
	for i, r := range s.ranges {
		out[i] = r.First
		if r.First != r.Last {
			out[i] = formatRange(r)
		}
	}
	return marshalSet(s.all, out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *PortSet) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*s = PortSet{}
		return nil
	}
	all, raw, err := unmarshalSet[any](b)
	ranges := make([]ruleset.PortRange, len(raw))
	for i := 0; i < len(raw) && err == nil; i++ {
		ranges[i], err = parseRange(fmt.Sprint(raw[i]), Grammar{Ranges: true})
	}
	if err != nil {
		return fmt.Errorf("ports: %w", err)
	}
	*s = newPortSet(ranges)
	s.all, s.none = all, !all && len(s.ranges) == 0
	return nil
}

// marshalSet writes "*" for all, else an array.
func marshalSet[T any](all bool, elements []T) ([]byte, error) {
	if all {
		return []byte(`"*"`), nil
	}
	if elements == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(elements)
}

func unmarshalSet[T any](b []byte) (all bool, elements []T, err error) {
	if string(b) == `"*"` {
		return true, nil, nil
	}
	if err := json.Unmarshal(b, &elements); err != nil {
		return false, nil, fmt.Errorf(`want "*" or an array: %w`, err)
	}
	return false, elements, nil
}
