package redirect

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Grammar is the set of forms that a mesh allows in a value. The zero value is
// the strictest: plain elements joined by commas.
type Grammar uint8

// The forms. They are combined with |.
const (
	// AllowAll lets the whole value be "*", which means all.
	AllowAll Grammar = 1 << iota
	// AllowRanges lets an element of a port list be "first-last".
	AllowRanges
	// AllowAddresses lets an element of a prefix list be an address, which means
	// that address alone: 10.0.0.1 is 10.0.0.1/32.
	AllowAddresses
	// AllowSpaces lets spaces surround an element of a prefix list. Other lists
	// always allow them.
	AllowSpaces
	// AllowZero lets a single port be 0. Port lists always allow it.
	AllowZero
)

// ParsePorts reads a list of ports, 0 to 65535. An empty or blank value is none.
// Spaces around an element are allowed; empty elements, signs and words are not.
func ParsePorts(s string, g Grammar) (PortSet, error) {
	if s == "*" && g&AllowAll != 0 {
		return AllPorts(), nil
	}
	if strings.TrimSpace(s) == "" {
		return PortSet{}, nil
	}
	ranges := make([]PortRange, 0, strings.Count(s, ",")+1)
	for part := range strings.SplitSeq(s, ",") {
		r, err := parseRange(strings.TrimSpace(part), g)
		if err != nil {
			return PortSet{}, err
		}
		ranges = append(ranges, r)
	}
	return newPortSet(ranges), nil
}

func parseRange(s string, g Grammar) (PortRange, error) {
	if first, last, ok := strings.Cut(s, "-"); ok && g&AllowRanges != 0 {
		a, err := ParsePort(first, AllowZero)
		if err != nil {
			return PortRange{}, err
		}
		b, err := ParsePort(last, AllowZero)
		if err != nil {
			return PortRange{}, err
		}
		if b < a {
			return PortRange{}, fmt.Errorf("range %s ends before it begins", brief.Quote(s))
		}
		return PortRange{First: a, Last: b}, nil
	}
	p, err := ParsePort(s, AllowZero)
	return ruleset.Port(p), err
}

// ParsePort reads one port, 1 to 65535, in decimal; from 0 with [AllowZero].
func ParsePort(s string, g Grammar) (uint16, error) {
	if s == "" {
		return 0, fmt.Errorf("empty element")
	}
	n, err := strconv.ParseUint(s, 10, 16)
	switch {
	case err != nil && g&AllowZero != 0:
		return 0, fmt.Errorf("%s is not a port from 0 to 65535", brief.Quote(s))
	case err != nil:
		return 0, fmt.Errorf("%s is not a port from 1 to 65535", brief.Quote(s))
	case n == 0 && g&AllowZero == 0:
		return 0, fmt.Errorf("0 is no port to listen on")
	}
	return uint16(n), nil
}

// ParsePrefixes reads a list of CIDR prefixes of either family. An empty value
// is none. A prefix length is required, except with [AllowAddresses].
func ParsePrefixes(s string, g Grammar) (PrefixSet, error) {
	if s == "*" && g&AllowAll != 0 {
		return AllPrefixes(), nil
	}
	if s == "" || g&AllowSpaces != 0 && strings.TrimSpace(s) == "" {
		return PrefixSet{}, nil
	}
	var prefixes []netip.Prefix
	for part := range strings.SplitSeq(s, ",") {
		if g&AllowSpaces != 0 {
			part = strings.TrimSpace(part)
		}
		p, err := ParsePrefix(part, g)
		if err != nil {
			return PrefixSet{}, err
		}
		prefixes = append(prefixes, p)
	}
	return Prefixes(prefixes...), nil
}

// ParsePrefix reads one CIDR prefix, or an address with [AllowAddresses].
func ParsePrefix(s string, g Grammar) (netip.Prefix, error) {
	if g&AllowAddresses == 0 {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			err = fmt.Errorf("%s is not a CIDR prefix such as 10.0.0.0/8", brief.Quote(s))
		}
		return p, err
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		err = fmt.Errorf("%s is neither an address nor a CIDR prefix", brief.Quote(s))
	}
	return p, err
}

// ParseInterfaces reads a list of interface names (see [ValidInterface]), without
// duplicates. An empty or blank value is none. Spaces around a name are allowed.
func ParseInterfaces(s string) ([]string, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var names []string
	for part := range strings.SplitSeq(s, ",") {
		name := strings.TrimSpace(part)
		if !ValidInterface(name) {
			return nil, fmt.Errorf("%s is not an interface name: %s", brief.Quote(name), interfaceNames)
		}
		names = append(names, name)
	}
	return distinct(names), nil
}

// distinct drops duplicates, in place and in linear time, since pods' authors write
// the lists. An empty list becomes nil.
func distinct[T comparable](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	seen := make(map[T]struct{}, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		_, again := seen[v]
		seen[v] = struct{}{}
		return again
	})
}

const interfaceNames = "at most 15 characters, a letter first, then letters, digits, '.', '-' and '_'"

// ValidInterface reports whether an interface name may stand in a rule: at most 15
// bytes (IFNAMSIZ less the terminating zero), a letter first, then letters, digits,
// '.', '-' and '_'. The kernel allows more, but to iptables a leading '-' or a trailing
// '+' means something else.
func ValidInterface(name string) bool {
	if name == "" || len(name) > 15 {
		return false
	}
	for i, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789.-_", rune(c))) {
			return false
		}
	}
	return true
}

// ParseIDs reads a list of user or group ids, 0 to 4294967294, without duplicates. An
// empty or blank value is none. Spaces around an element are allowed.
func ParseIDs(s string) ([]uint32, error) {
	var ids []uint32
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32)
		if err != nil || n == NoID {
			return nil, fmt.Errorf("%s is not a numeric id from 0 to %d", brief.Quote(strings.TrimSpace(part)), uint32(NoID-1))
		}
		ids = append(ids, uint32(n))
	}
	return distinct(ids), nil
}

// NoID is (uid_t)-1, which the kernel reserves: no user or group has it.
const NoID = 1<<32 - 1
