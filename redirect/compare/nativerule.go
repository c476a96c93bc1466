package compare

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// maxNative bounds what one rule with sets becomes.
const maxNative = 4096

// familyRule is a rule of one family.
type familyRule struct {
	family ruleset.Family
	rule   ruleset.Rule
}

// nativeRule is a rule as it is read. A list is of what it may match, one of it; an empty one matches all.
type nativeRule struct {
	table    *nativeTable
	words    []word
	families []ruleset.Family
	base     ruleset.Rule
	protos   []ruleset.Proto
	srcs     []ruleset.PrefixMatch
	dsts     []ruleset.PrefixMatch
	ins      []ruleset.InterfaceMatch
	outs     []ruleset.InterfaceMatch
	owners   [][]ruleset.OwnerMatch // one of each must match
	// does is what it does, in order. Marks that it sets are not to be matched after that.
	does  []ruleset.Target
	final bool
}

var errUnknown = errors.New("not understood")

// rule reads a rule, which becomes one for each family, each combination of elements and each thing that it does.
func (t *nativeTable) rule(words []word) ([]familyRule, error) {
	r := nativeRule{table: t, words: words, families: families[t.family]}
	for len(r.words) > 0 {
		if r.final && r.words[0].text != "comment" {
			return nil, errUnknown
		}
		if err := r.part(); err != nil {
			return nil, err
		}
	}
	return r.rules()
}

func (r *nativeRule) next() word {
	if len(r.words) == 0 {
		return word{}
	}
	w := r.words[0]
	r.words = r.words[1:]
	return w
}

// take takes the words if they are next.
func (r *nativeRule) take(words ...string) bool {
	if len(r.words) < len(words) {
		return false
	}
	for i, w := range words {
		if r.words[i].text != w || r.words[i].quoted {
			return false
		}
	}
	r.words = r.words[len(words):]
	return true
}

// parts are the beginnings of matches and statements. The longest come first.
var parts = []struct {
	words string
	read  func(*nativeRule) error
}{
	{"meta mark set", (*nativeRule).setMark},
	{"ct mark set", (*nativeRule).setConnMark},
	{"ct zone set", (*nativeRule).setZone},
	{"meta nfproto", (*nativeRule).nfproto},
	{"meta l4proto", (*nativeRule).l4proto},
	{"ip protocol", func(r *nativeRule) error { return errors.Join(r.only(ruleset.IPv4), r.l4proto()) }},
	{"meta mark", func(r *nativeRule) error { return r.mark(&r.base.Mark) }},
	{"ct mark", func(r *nativeRule) error { return r.mark(&r.base.ConnMark) }},
	{"ct state", (*nativeRule).state},
	{"ip saddr", func(r *nativeRule) error { return r.address(ruleset.IPv4, &r.srcs) }},
	{"ip daddr", func(r *nativeRule) error { return r.address(ruleset.IPv4, &r.dsts) }},
	{"ip6 saddr", func(r *nativeRule) error { return r.address(ruleset.IPv6, &r.srcs) }},
	{"ip6 daddr", func(r *nativeRule) error { return r.address(ruleset.IPv6, &r.dsts) }},
	{"tcp sport", func(r *nativeRule) error { return r.ports(ruleset.TCP, &r.base.SrcPorts) }},
	{"tcp dport", func(r *nativeRule) error { return r.ports(ruleset.TCP, &r.base.DstPorts) }},
	{"udp sport", func(r *nativeRule) error { return r.ports(ruleset.UDP, &r.base.SrcPorts) }},
	{"udp dport", func(r *nativeRule) error { return r.ports(ruleset.UDP, &r.base.DstPorts) }},
	{"th sport", func(r *nativeRule) error { return r.ports(ruleset.AnyProto, &r.base.SrcPorts) }},
	{"th dport", func(r *nativeRule) error { return r.ports(ruleset.AnyProto, &r.base.DstPorts) }},
	{"iifname", func(r *nativeRule) error { return r.iface(&r.ins, false) }},
	{"oifname", func(r *nativeRule) error { return r.iface(&r.outs, false) }},
	{"iif", func(r *nativeRule) error { return r.iface(&r.ins, true) }},
	{"oif", func(r *nativeRule) error { return r.iface(&r.outs, true) }},
	{"meta skuid", func(r *nativeRule) error { return r.owner(ruleset.UID) }},
	{"meta skgid", func(r *nativeRule) error { return r.owner(ruleset.GID) }},
	{"skuid", func(r *nativeRule) error { return r.owner(ruleset.UID) }},
	{"skgid", func(r *nativeRule) error { return r.owner(ruleset.GID) }},
	{"fib saddr type", func(r *nativeRule) error { return r.addrType(&r.base.SrcType) }},
	{"fib daddr type", func(r *nativeRule) error { return r.addrType(&r.base.DstType) }},
	{"counter", (*nativeRule).counter},
	{"comment", func(r *nativeRule) error { r.base.Comment = r.next().text; return nil }},
	{"log", (*nativeRule).log},
	{"accept", func(r *nativeRule) error { return r.end(ruleset.Target{Action: ruleset.Accept}) }},
	{"drop", func(r *nativeRule) error { return r.end(ruleset.Target{Action: ruleset.Drop}) }},
	{"return", func(r *nativeRule) error { return r.end(ruleset.Target{Action: ruleset.Return}) }},
	{"continue", func(r *nativeRule) error { return r.end(ruleset.Target{}) }},
	{"jump", func(r *nativeRule) error { return r.end(ruleset.Target{Action: ruleset.Jump, Chain: r.next().text}) }},
	{"redirect to", (*nativeRule).redirect},
	{"dnat", (*nativeRule).dnat},
	{"tproxy", (*nativeRule).tproxy},
}

func (r *nativeRule) part() error {
	for _, p := range parts {
		if r.take(strings.Fields(p.words)...) {
			if err := p.read(r); err != nil {
				return fmt.Errorf("%s: %w", p.words, err)
			}
			return nil
		}
	}
	return fmt.Errorf("%q: %w", r.words[0].text, errUnknown)
}

// matching fails for a match after something that the rule does, which might have changed what is matched.
func (r *nativeRule) matching() error {
	if len(r.does) > 0 {
		return errors.New("it matches after it has acted")
	}
	return nil
}

// values reads what a key is compared with: one value, a set's elements, or the negation of them.
func (r *nativeRule) values() (not bool, values []string, err error) {
	if err := r.matching(); err != nil {
		return false, nil, err
	}
	not = r.take("!=")
	_ = not || r.take("==")
	w := r.next()
	switch set, named := strings.CutPrefix(w.text, "@"); {
	case w.is("{"):
		end := slices.IndexFunc(r.words, func(w word) bool { return w.is("}") })
		if end < 0 {
			return false, nil, errUnknown
		}
		values, r.words = listed(r.words[:end]), r.words[end+1:]
	case named && !w.quoted:
		var known bool
		if values, known = r.table.sets[set]; !known {
			return false, nil, fmt.Errorf("the elements of set %s are not known", set)
		}
	case w.mark || w.text == "" || strings.ContainsAny(w.text, "<>="):
		return false, nil, errUnknown
	default:
		values = []string{w.text}
	}
	if len(values) == 0 {
		return false, nil, errors.New("an empty set")
	}
	return not, values, nil
}

// only leaves one of the families.
func (r *nativeRule) only(f ruleset.Family) error {
	if !slices.Contains(r.families, f) {
		return errors.New("it is for no family of its table")
	}
	r.families = []ruleset.Family{f}
	return nil
}

func (r *nativeRule) nfproto() error {
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

func (r *nativeRule) l4proto() error {
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

func (r *nativeRule) ports(proto ruleset.Proto, to *ruleset.PortMatch) error {
	not, values, err := r.values()
	hasPorts := func(p ruleset.Proto) bool { return p == ruleset.TCP || p == ruleset.UDP }
	switch {
	case err != nil:
		return err
	case proto != ruleset.AnyProto && len(r.protos) == 0:
		r.protos = []ruleset.Proto{proto}
	case proto != ruleset.AnyProto && !slices.Equal(r.protos, []ruleset.Proto{proto}), len(r.protos) == 0,
		slices.ContainsFunc(r.protos, func(p ruleset.Proto) bool { return !hasPorts(p) }), !to.IsZero():
		return errUnknown
	}
	to.Not = not
	for _, v := range values {
		first, last, err := numbers(v, 16)
		if err != nil {
			return err
		}
		to.Ranges = append(to.Ranges, ruleset.PortRange{First: uint16(first), Last: uint16(last)}) //nolint:gosec // 16 bits
	}
	return nil
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

func (r *nativeRule) address(f ruleset.Family, to *[]ruleset.PrefixMatch) error {
	not, values, err := r.values()
	switch {
	case err != nil:
		return err
	case len(*to) > 0:
		return errors.New("two matches of one address")
	case not && len(values) > 1:
		return errors.New("several addresses negated")
	}
	for _, v := range values {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(v); err == nil {
				p = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if err != nil || ruleset.FamilyOf(p.Addr()) != f || p.Addr().Zone() != "" {
			return fmt.Errorf("%q is no address or prefix of the family", v)
		}
		m := ruleset.PrefixMatch{Prefix: p.Masked(), Not: not}
		if p.Bits() == 0 && !not {
			m = ruleset.PrefixMatch{}
		}
		*to = append(*to, m)
	}
	return r.only(f)
}

// iface reads names. By its index only lo is known.
func (r *nativeRule) iface(to *[]ruleset.InterfaceMatch, index bool) error {
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
		if index && v != "lo" || !escaped && strings.HasSuffix(v, "*") {
			return fmt.Errorf("%q: %w", v, errUnknown)
		}
		*to = append(*to, ruleset.InterfaceMatch{Name: name, Not: not})
	}
	return nil
}

func (r *nativeRule) owner(kind ruleset.OwnerKind) error {
	not, values, err := r.values()
	if err != nil {
		return err
	}
	var of []ruleset.OwnerMatch
	for _, v := range values {
		first, last, err := numbers(v, 32)
		if err != nil {
			return err
		}
		of = append(of, ruleset.OwnerMatch{Kind: kind, First: first, Last: last, Not: not})
	}
	if !not {
		r.owners = append(r.owners, of)
		return nil
	}
	for _, o := range of { // none of them
		r.owners = append(r.owners, []ruleset.OwnerMatch{o})
	}
	return nil
}

func (r *nativeRule) addrType(to *ruleset.AddrType) error {
	not, values, err := r.values()
	if err != nil || !slices.Equal(values, []string{"local"}) || *to != ruleset.AnyType {
		return errors.Join(err, errUnknown)
	}
	if *to = ruleset.Local; not {
		*to = ruleset.NotLocal
	}
	return nil
}

var nativeStates = map[string]ruleset.States{
	"invalid": ruleset.StateInvalid, "new": ruleset.StateNew, "related": ruleset.StateRelated, "established": ruleset.StateEstablished,
	"untracked": ruleset.StateUntracked,
}

func (r *nativeRule) state() error {
	not, values, err := r.values()
	if err != nil || not || r.base.States != 0 {
		return errors.Join(err, errUnknown)
	}
	for len(r.words) > 1 && r.words[0].is(",") {
		r.next()
		values = append(values, r.next().text)
	}
	for _, v := range values {
		if nativeStates[v] == 0 {
			return fmt.Errorf("%q: %w", v, errUnknown)
		}
		r.base.States |= nativeStates[v]
	}
	return nil
}

// mark reads VALUE, or "and MASK == VALUE".
func (r *nativeRule) mark(to *ruleset.MarkMatch) error {
	m := ruleset.MarkMatch{Mask: ruleset.FullMask}
	if !to.IsZero() {
		return errors.New("two matches of one mark")
	}
	var err error
	if r.take("and") || r.take("&") {
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

func (r *nativeRule) counter() error {
	if r.take("packets") {
		r.next()
		if !r.take("bytes") {
			return errUnknown
		}
		r.next()
	}
	return nil
}

func (r *nativeRule) rules() ([]familyRule, error) {
	switch {
	case len(r.does) == 0:
		r.does = []ruleset.Target{{}}
	case !r.final && slices.ContainsFunc(r.does, func(t ruleset.Target) bool { return t.Action == ruleset.TProxy }):
		return nil, errors.New("a transparent proxy without accept")
	}
	if len(r.does) > 1 {
		for _, t := range r.does {
			setsMark := t.Action == ruleset.SetMark || t.Action == ruleset.RestoreMark
			setsConn := t.Action == ruleset.SaveMark || t.Action == ruleset.SetConnMark
			if setsMark && !r.base.Mark.IsZero() || setsConn && !r.base.ConnMark.IsZero() {
				return nil, errors.New("it acts again after it has changed the mark that it matches")
			}
		}
	}
	all := []ruleset.Rule{r.base}
	all = times(all, r.protos, func(x *ruleset.Rule, p ruleset.Proto) { x.Proto = p })
	all = times(all, r.srcs, func(x *ruleset.Rule, m ruleset.PrefixMatch) { x.Src = m })
	all = times(all, r.dsts, func(x *ruleset.Rule, m ruleset.PrefixMatch) { x.Dst = m })
	all = times(all, r.ins, func(x *ruleset.Rule, m ruleset.InterfaceMatch) { x.In = m })
	all = times(all, r.outs, func(x *ruleset.Rule, m ruleset.InterfaceMatch) { x.Out = m })
	for _, of := range r.owners {
		all = times(all, of, func(x *ruleset.Rule, m ruleset.OwnerMatch) { x.Owner = append(slices.Clip(x.Owner), m) })
	}
	if len(all)*len(r.does) > maxNative {
		return nil, fmt.Errorf("it is more than %d rules without its sets", maxNative)
	}
	var rules []familyRule
	for _, f := range r.families {
		for _, x := range all {
			for _, x.Target = range r.does {
				rules = append(rules, familyRule{f, x})
			}
		}
	}
	return rules, nil
}

// times makes each rule one for each value.
func times[T any](rules []ruleset.Rule, values []T, set func(*ruleset.Rule, T)) []ruleset.Rule {
	if len(values) == 0 || len(rules) > maxNative {
		return rules
	}
	var out []ruleset.Rule
	for _, x := range rules {
		for _, v := range values {
			y := x
			set(&y, v)
			out = append(out, y)
		}
	}
	return out
}
