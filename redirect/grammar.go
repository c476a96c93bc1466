package redirect

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Grammar is the set of forms that a mesh allows in a value. The zero value allows only plain elements, separated by commas.
type Grammar struct {
	// All lets the whole value be "*", which means all.
	All bool
	// Ranges lets an element of a port list be "first-last".
	Ranges bool
	// Addresses lets an element of a prefix list be an address, which means that address alone: 10.0.0.1 is 10.0.0.1/32.
	Addresses bool
	// Spaces lets spaces surround an element of a prefix list. Other lists always allow them.
	Spaces bool
	// Zero lets a single port be 0. Port lists always allow it.
	Zero bool
}

// parseList reads elements that are separated by commas. An empty value is nil; so
// is a blank one with trim, which also takes the spaces off each element. The error
// names every element that is wrong.
func parseList[T any](s string, trim bool, parse func(string) (T, error)) ([]T, error) {
	if s == "" || trim && strings.TrimSpace(s) == "" {
		return nil, nil
	}
	return truncate.Each(strings.SplitSeq(s, ","), func(part string) (T, error) {
		if trim {
			part = strings.TrimSpace(part)
		}
		return parse(part)
	})
}

// ParsePorts parses a list of ports, 0 to 65535. An empty or blank value is none.
// Spaces around an element are allowed; empty elements, signs and words are not.
func ParsePorts(s string, g Grammar) (PortSet, error) {
	if s == "*" && g.All {
		return AllPorts(), nil
	}
	ranges, err := parseList(s, true, func(part string) (ruleset.PortRange, error) { return parseRange(part, g) })
	if err != nil {
		return PortSet{}, err
	}
	set := newPortSet(ranges)
	set.none = len(ranges) == 0
	return set, nil
}

func parseRange(s string, g Grammar) (ruleset.PortRange, error) {
	if first, last, ok := strings.Cut(s, "-"); ok && g.Ranges {
		a, err := ParsePort(first, Grammar{Zero: true})
		if err != nil {
			return ruleset.PortRange{}, err
		}
		b, err := ParsePort(last, Grammar{Zero: true})
		if err != nil {
			return ruleset.PortRange{}, err
		}
		if b < a {
			return ruleset.PortRange{}, fmt.Errorf("range %s ends before it begins", truncate.Quote(s))
		}
		return ruleset.PortRange{First: a, Last: b}, nil
	}
	p, err := ParsePort(s, Grammar{Zero: true})
	return ruleset.Port(p), err
}

// ParsePort parses one port, 1 to 65535, in decimal; from 0 with [Grammar].Zero.
func ParsePort(s string, g Grammar) (uint16, error) {
	if s == "" {
		return 0, fmt.Errorf("empty element")
	}
	first := 1
	if g.Zero {
		first = 0
	}
	n, err := strconv.ParseUint(s, 10, 16)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s is not a port from %d to 65535", truncate.Quote(s), first)
	case n == 0 && first > 0:
		return 0, fmt.Errorf("0 is no port to listen on")
	}
	return uint16(n), nil
}

// parsePrefixes parses a list of CIDR prefixes of either family. An empty value is
// none. A prefix length is required, except with [Grammar].Addresses.
func parsePrefixes(s string, g Grammar) (PrefixSet, error) {
	if s == "*" && g.All {
		return AllPrefixes(), nil
	}
	list, err := parseList(s, g.Spaces, func(part string) (netip.Prefix, error) { return ParsePrefix(part, g) })
	if err != nil {
		return PrefixSet{}, err
	}
	if len(list) == 0 {
		return NoPrefixes(), nil
	}
	return Prefixes(list...), nil
}

// ParsePrefix parses one CIDR prefix, or an address with [Grammar].Addresses.
func ParsePrefix(s string, g Grammar) (netip.Prefix, error) {
	want := "not a CIDR prefix such as 10.0.0.0/8"
	if g.Addresses {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return netip.PrefixFrom(a, a.BitLen()), nil
		}
		want = "neither an address nor a CIDR prefix"
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		err = fmt.Errorf("%s is %s", truncate.Quote(s), want)
	}
	return p, err
}

// parseInterfaces parses a list of interface names, as [ValidInterfacePattern] without a wildcard, and drops
// duplicates. An empty or blank value is none. Spaces around a name are allowed.
func parseInterfaces(s string) ([]string, error) {
	names, err := parseList(s, true, func(name string) (string, error) {
		if !validInterface(name) {
			return "", fmt.Errorf("%s is not an interface name: %s", truncate.Quote(name), interfaceNames)
		}
		return name, nil
	})
	return distinct(names), err
}

// distinct drops duplicates in place. An empty list becomes nil. It takes linear
// time, because a pod's author controls the length.
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

// validInterface is [ValidInterfacePattern] without the wildcard. The kernel allows
// more, but iptables reads a leading '-' as an option and a trailing '+' as a wildcard.
func validInterface(name string) bool {
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

// ValidInterfacePattern reports whether a rule may name the interface: at most 15 bytes (IFNAMSIZ less the terminating zero), a letter
// first, then letters, digits, '.', '-' and '_'; and iptables' wildcard, a "+" at the end, for all interfaces whose names begin so.
func ValidInterfacePattern(name string) bool {
	prefix, _ := ruleset.InterfaceMatch{Name: name}.Wildcard()
	return validInterface(prefix) && len(name) <= 15
}

// ParseIDs parses a list of user or group ids, 0 to 4294967294, and drops
// duplicates. An empty or blank value is none. Spaces around an element are allowed.
func ParseIDs(s string) ([]uint32, error) {
	ids, err := parseList(s, true, func(id string) (uint32, error) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil || n == uint64(NoID) {
			return 0, fmt.Errorf("%s is not a numeric id from 0 to %d", truncate.Quote(id), uint32(NoID-1))
		}
		return uint32(n), nil
	})
	return distinct(ids), err
}

// NoID is (uid_t)-1, which the kernel reserves: no user or group has it.
const NoID uint32 = 1<<32 - 1
