package compare

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// maxNative bounds what one rule with sets becomes, and maxNatives what all rules do, since the text is a pod's.
const (
	maxNative  = 4096
	maxNatives = 1 << 16
)

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
	// does lists its actions, in order. Marks that it sets are not to be matched after that.
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
	n := len(r.does)
	for _, values := range append(lengths(r.owners), len(r.protos), len(r.srcs), len(r.dsts), len(r.ins), len(r.outs)) {
		if n *= max(values, 1); n > maxNative { // before any of them is made
			return nil, fmt.Errorf("it is more than %d rules without its sets", maxNative)
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

func lengths[T any](lists [][]T) (n []int) {
	for _, list := range lists {
		n = append(n, len(list))
	}
	return n
}

// times makes each rule one for each value.
func times[T any](rules []ruleset.Rule, values []T, set func(*ruleset.Rule, T)) []ruleset.Rule {
	if len(values) == 0 {
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
