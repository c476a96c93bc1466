package nft

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// only leaves one of the families.
func (r *ruleParser) only(f ruleset.Family) error {
	if !slices.Contains(r.families, f) {
		return errors.New("it is for no family of its table")
	}
	r.families = []ruleset.Family{f}
	return nil
}

func (r *ruleParser) nfproto() error {
	not, values, err := r.values()
	if err == nil && !not && len(values) == 1 {
		for _, f := range ruleset.Families {
			if f.String() == values[0] {
				return r.only(f)
			}
		}
	}
	return errors.Join(err, errUnknown)
}

func (r *ruleParser) l4proto() error {
	not, values, err := r.values()
	if err != nil || not || len(r.protos) > 0 {
		return errors.Join(err, errUnknown)
	}
	for _, v := range values {
		n, err := strconv.ParseUint(v, 10, 8)
		switch {
		case v == "tcp":
			n, err = uint64(ruleset.TCP), nil
		case v == "udp":
			n, err = uint64(ruleset.UDP), nil
		}
		if err != nil || n == 0 {
			return errUnknown
		}
		r.protos = append(r.protos, ruleset.Proto(n))
	}
	return nil
}

// ports reads the ports of TCP and UDP, which the rule must have matched before.
func (r *ruleParser) ports(to *ruleset.PortMatch) error {
	not, values, err := r.values()
	portless := func(p ruleset.Proto) bool { return p != ruleset.TCP && p != ruleset.UDP }
	switch {
	case err != nil:
		return err
	case len(r.protos) == 0, slices.ContainsFunc(r.protos, portless), !to.IsZero():
		return errUnknown
	}
	to.Not = not
	to.Ranges, err = readOnce(&r.read.ports, values, func(v string) (ruleset.PortRange, error) {
		first, last, err := numbers(v, 16)
		return ruleset.PortRange{First: uint16(first), Last: uint16(last)}, err //nolint:gosec // 16 bits
	})
	return err
}

// readOnce reads the elements of a list, which may be a set that many rules name.
func readOnce[T any](known *map[setKey][]T, values []string, read func(string) (T, error)) ([]T, error) {
	key := setKey{&values[0], len(values)}
	if list, ok := (*known)[key]; ok {
		return list, nil
	}
	list := make([]T, len(values))
	for i, v := range values {
		var err error
		if list[i], err = read(v); err != nil {
			return nil, err
		}
	}
	if *known == nil {
		*known = map[setKey][]T{}
	}
	if len(list) > 1 {
		(*known)[key] = list
	}
	return list, nil
}

// numbers reads N or N-M.
func numbers(s string, bits int) (first, last uint32, err error) {
	a, b, isRange := strings.Cut(s, "-")
	if !isRange {
		b = a
	}
	x, err := strconv.ParseUint(a, 0, bits)
	y, err2 := strconv.ParseUint(b, 0, bits)
	if err != nil || err2 != nil || y < x {
		return 0, 0, fmt.Errorf("%q is no number", s)
	}
	return uint32(x), uint32(y), nil //nolint:gosec // at most 32 bits
}

func (r *ruleParser) address(f ruleset.Family, to *[]ruleset.PrefixMatch) error {
	not, values, err := r.values()
	switch {
	case err != nil:
		return err
	case len(*to) > 0:
		return errors.New("two matches of one address")
	case not && len(values) > 1:
		return errors.New("several addresses negated")
	}
	list, err := readOnce(&r.read.prefixes, values, func(v string) (netip.Prefix, error) {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(v); err == nil {
				p = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if err != nil || p.Addr().Zone() != "" {
			return p, fmt.Errorf("%q is no address or prefix of the family", v)
		}
		return p.Masked(), nil
	})
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(list, func(p netip.Prefix) bool { return ruleset.FamilyOf(p.Addr()) != f }); i >= 0 {
		return fmt.Errorf("%q is no address or prefix of the family", values[i])
	}
	if len(list) > maxSingle {
		*to = append(*to, r.read.match(values, list))
		return r.only(f)
	}
	for _, p := range list {
		m := ruleset.PrefixMatch{Prefix: p, Not: not}
		if p.Bits() == 0 && !not {
			m = ruleset.PrefixMatch{}
		}
		*to = append(*to, m)
	}
	return r.only(f)
}

// match returns the match of a list that was read of values: one, however many rules name them, so that many rules with a long set are small.
func (r *Reader) match(values []string, list []netip.Prefix) ruleset.PrefixMatch {
	key := setKey{&values[0], len(values)}
	m, known := r.matches[key]
	if !known {
		if r.matches == nil {
			r.matches = map[setKey]ruleset.PrefixMatch{}
		}
		m = ruleset.MatchPrefix(list...)
		r.matches[key] = m
	}
	return m
}

// maxSingle is the most prefixes of a set that are matches of their own.
const maxSingle = 8

// validInterface reports whether a name can be an interface's, by the kernel's dev_valid_name, and needs no quotes in iptables. The kernel
// lets a rule compare with any bytes.
func validInterface(name string) bool {
	return len(name) <= 15 && name != "." && name != ".." && chains.Safe(strings.TrimSuffix(name, "+"))
}

// iface reads names.
func (r *ruleParser) iface(to *[]ruleset.InterfaceMatch) error {
	not, values, err := r.values()
	switch {
	case err != nil:
		return err
	case len(*to) > 0 || not && len(values) > 1:
		return errUnknown
	}
	for _, v := range values {
		name, escaped := strings.CutSuffix(v, `\*`)
		if escaped {
			name += "*"
		}
		if strings.HasSuffix(name, "+") { // a name itself, which our model takes for a wildcard
			return fmt.Errorf("%q: %w", v, errUnknown)
		}
		if prefix, wildcard := strings.CutSuffix(v, "*"); wildcard && !escaped {
			name = prefix + "+"
		}
		if !validInterface(name) {
			return fmt.Errorf("%q: %w", v, errUnknown)
		}
		*to = append(*to, ruleset.InterfaceMatch{Name: name, Not: not})
	}
	return nil
}

func (r *ruleParser) owner(kind ruleset.OwnerKind) error {
	if len(r.words) > 1 && (r.words[0].text == ">=" || r.words[0].text == "<=") {
		return r.bound(kind)
	}
	not, values, err := r.values()
	if err != nil {
		return err
	}
	var each []ruleset.OwnerMatch
	for _, v := range values {
		first, last, err := numbers(v, 32)
		if err != nil {
			return err
		}
		each = append(each, ruleset.OwnerMatch{Kind: kind, First: first, Last: last, Not: not})
	}
	if !not {
		r.owners = append(r.owners, each)
		return nil
	}
	for _, o := range each { // none of them
		r.owners = append(r.owners, []ruleset.OwnerMatch{o})
	}
	return nil
}

// bound reads one end of a range, which the kernel keeps as two comparisons.
func (r *ruleParser) bound(kind ruleset.OwnerKind) error {
	lower := r.next().text == ">="
	n, err := r.number()
	if err = errors.Join(r.matching(), err); err != nil {
		return err
	}
	if lower {
		r.owners = append(r.owners, []ruleset.OwnerMatch{{Kind: kind, First: n, Last: math.MaxUint32}})
		return nil
	}
	if i := len(r.owners) - 1; i >= 0 && len(r.owners[i]) == 1 {
		if o := &r.owners[i][0]; o.Kind == kind && !o.Not && o.Last == math.MaxUint32 && o.First <= n {
			o.Last = n
			return nil
		}
	}
	r.owners = append(r.owners, []ruleset.OwnerMatch{{Kind: kind, Last: n}})
	return nil
}

func (r *ruleParser) addrType(to *ruleset.AddrType) error {
	not, values, err := r.values()
	if err != nil || !slices.Equal(values, []string{"local"}) || *to != 0 {
		return errors.Join(err, errUnknown)
	}
	*to = ruleset.AddrTypeLocal
	if not {
		*to = ruleset.AddrTypeNotLocal
	}
	return nil
}

var states = []ruleset.States{
	ruleset.StateInvalid, ruleset.StateNew, ruleset.StateRelated, ruleset.StateEstablished, ruleset.StateUntracked,
}

func (r *ruleParser) state() error {
	not, values, err := r.values()
	if err != nil || not || r.base.States != 0 {
		return errors.Join(err, errUnknown)
	}
	for _, v := range strings.Split(strings.Join(values, ","), ",") {
		at := slices.IndexFunc(states, func(s ruleset.States) bool { return strings.ToLower(s.String()) == v })
		if at < 0 {
			return fmt.Errorf("%q: %w", v, errUnknown)
		}
		r.base.States |= states[at]
	}
	return nil
}

// mark reads VALUE, or "and MASK == VALUE".
func (r *ruleParser) mark(to *ruleset.MarkMatch) error {
	m := ruleset.MarkMatch{Mask: ruleset.FullMask}
	if !to.IsZero() {
		return errors.New("two matches of one mark")
	}
	var err error
	if r.take("and") {
		if m.Mask, _, err = numbers(r.next().text, 32); err != nil || m.IsZero() {
			return errors.Join(err, errUnknown)
		}
	}
	not, values, err := r.values()
	if err != nil || len(values) != 1 {
		return errors.Join(err, errUnknown)
	}
	var last uint32
	if m.Value, last, err = numbers(values[0], 32); err != nil || last != m.Value {
		return errors.Join(err, errUnknown)
	}
	m.Not = not
	*to = m
	return nil
}
