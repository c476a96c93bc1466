package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// maxRules bounds what one rule with sets becomes, and maxAllRules what all rules do, since a pod writes them. The prefixes of a set are one
// match, and read once, however many rules name it.
const (
	maxRules    = 4096
	maxAllRules = 1 << 16
)

// Reader reads the rules of one namespace. The zero Reader is ready for use.
type Reader struct {
	made     int
	prefixes map[setKey][]netip.Prefix // of the sets that were read
	matches  map[setKey]ruleset.PrefixMatch
	ports    map[setKey][]ruleset.PortRange
}

// setKey tells a set's elements by where they are.
type setKey struct {
	first *string
	n     int
}

// Read returns the rule that the words are, with what it does in the model. A rule with several statements becomes one of the
// model for each, and one with sets of other things than ports or more than eight prefixes one for each combination of elements. Sets have the elements of the table's sets that are known. One that becomes
// more than 4096 rules, and what comes after 65536 in all, is outside the model.
func (r *Reader) Read(family string, words []Word, sets map[string][]string) ruleset.LiveRule {
	live := ruleset.LiveRule{Backend: ruleset.BackendNftables, Text: Join(words)}
	p := ruleParser{read: r, sets: sets, words: words, families: families[family]}
	rules, err := p.parse()
	if err == nil {
		if r.made += len(rules); r.made > maxAllRules {
			rules, err = nil, fmt.Errorf("with it, the rules are more than %d without their sets", maxAllRules)
		}
	}
	if all := families[family]; len(all) == 1 {
		live.Family = all[0]
	} else if len(p.families) == 1 {
		live.Family = p.families[0]
	}
	t := foreignTarget(words)
	live.Rules = rules
	if err != nil {
		live.Foreign = err.Error()
		live.Known, live.Matches = p.known(t)
	} else {
		t = rules[len(rules)-1].Target
	}
	live.Action, live.JumpTo = t.Action.String(), t.Chain
	return live
}

// families are those of a table's packets.
var families = map[string][]ruleset.Family{"ip": {ruleset.IPv4}, "ip6": {ruleset.IPv6}, "inet": {ruleset.IPv4, ruleset.IPv6}}

// foreignTarget returns the target of a rule outside the model, as far as its words tell.
func foreignTarget(words []Word) ruleset.Target {
	for i, w := range words {
		if w.quoted {
			continue
		}
		for _, a := range []ruleset.Action{ruleset.ActionAccept, ruleset.ActionDrop, ruleset.ActionReturn, ruleset.ActionRedirect, ruleset.ActionDNAT, ruleset.ActionTProxy} {
			if w.text == a.String() { // the first: a transparent proxy is followed by accept
				return ruleset.Target{Action: a}
			}
		}
		if (w.text == "jump" || w.text == "goto") && i+1 < len(words) {
			return ruleset.Target{Action: ruleset.ActionJump, Chain: words[i+1].text}
		}
	}
	return ruleset.Target{}
}

// ruleParser is a rule as it is read. A list is of what it may match, one of it; an empty one matches all.
type ruleParser struct {
	read     *Reader
	sets     map[string][]string
	words    []Word
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

// parse reads a rule, which becomes one for each combination of elements and each thing that it does.
func (r *ruleParser) parse() ([]ruleset.Rule, error) {
	if len(r.families) == 0 {
		return nil, errors.New("its table's family is not known")
	}
	for len(r.words) > 0 {
		if r.final && r.words[0].text != "comment" {
			return nil, errUnknown
		}
		before := *r
		if err := r.part(); err != nil {
			before.families = r.families
			*r = before
			return nil, err
		}
	}
	return r.rules()
}

// known is a rule as far as it was read, before the words that are not understood: other matches may follow. The target is that of the whole
// rule, if nothing in between does anything that could matter.
func (r *ruleParser) known(t ruleset.Target) (known ruleset.Rule, matches bool) {
	known = r.base
	one := func(n int) bool { return n == 1 }
	if one(len(r.protos)) {
		known.Proto = r.protos[0]
	}
	if one(len(r.srcs)) {
		known.Src = r.srcs[0]
	}
	if one(len(r.dsts)) {
		known.Dst = r.dsts[0]
	}
	if one(len(r.ins)) {
		known.In = r.ins[0]
	}
	if one(len(r.outs)) {
		known.Out = r.outs[0]
	}
	known.Target = ruleset.Target{Action: ruleset.ActionUnknown}
	mapped := func(w Word) bool {
		return !w.quoted && (w.text == "map" || w.text == "goto")
	}
	switch {
	case len(r.does) > 0 || slices.ContainsFunc(r.words, mapped):
	case slices.ContainsFunc(r.words, func(w Word) bool { return !w.quoted && w.text == "reject" }):
		known.Target.Action = ruleset.ActionDrop
	case t.Action == ruleset.ActionAccept || t.Action == ruleset.ActionDrop || t.Action == ruleset.ActionReturn || t.Action == ruleset.ActionJump:
		known.Target = t
	}
	return known, len(r.words) > 0 && r.words[0].text == "reject" && !r.words[0].quoted
}

func (r *ruleParser) next() Word {
	if len(r.words) == 0 {
		return Word{}
	}
	w := r.words[0]
	r.words = r.words[1:]
	return w
}

// take takes the words if they are next.
func (r *ruleParser) take(words ...string) bool {
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
	read  func(*ruleParser) error
}{
	{"meta mark set", (*ruleParser).setMark},
	{"ct mark set", (*ruleParser).setConnMark},
	{"ct zone set", (*ruleParser).setZone},
	{"meta nfproto", (*ruleParser).nfproto},
	{"meta l4proto", (*ruleParser).l4proto},
	{"meta mark", func(r *ruleParser) error { return r.mark(&r.base.Mark) }},
	{"ct mark", func(r *ruleParser) error { return r.mark(&r.base.ConnMark) }},
	{"ct state", (*ruleParser).state},
	{"ip saddr", func(r *ruleParser) error { return r.address(ruleset.IPv4, &r.srcs) }},
	{"ip daddr", func(r *ruleParser) error { return r.address(ruleset.IPv4, &r.dsts) }},
	{"ip6 saddr", func(r *ruleParser) error { return r.address(ruleset.IPv6, &r.srcs) }},
	{"ip6 daddr", func(r *ruleParser) error { return r.address(ruleset.IPv6, &r.dsts) }},
	{"th sport", func(r *ruleParser) error { return r.ports(&r.base.SrcPorts) }},
	{"th dport", func(r *ruleParser) error { return r.ports(&r.base.DstPorts) }},
	{"iifname", func(r *ruleParser) error { return r.iface(&r.ins) }},
	{"oifname", func(r *ruleParser) error { return r.iface(&r.outs) }},
	{"meta skuid", func(r *ruleParser) error { return r.owner(ruleset.OwnerUID) }},
	{"meta skgid", func(r *ruleParser) error { return r.owner(ruleset.OwnerGID) }},
	{"fib saddr type", func(r *ruleParser) error { return r.addrType(&r.base.SrcType) }},
	{"fib daddr type", func(r *ruleParser) error { return r.addrType(&r.base.DstType) }},
	{"counter", func(*ruleParser) error { return nil }},
	{"comment", func(r *ruleParser) error { r.base.Comment = r.next().text; return nil }},
	{"log", (*ruleParser).log},
	{"notrack", func(r *ruleParser) error { return r.do(ruleset.Target{Action: ruleset.ActionNoTrack}) }},
	{"accept", func(r *ruleParser) error { return r.end(ruleset.Target{Action: ruleset.ActionAccept}) }},
	{"drop", func(r *ruleParser) error { return r.end(ruleset.Target{Action: ruleset.ActionDrop}) }},
	{"return", func(r *ruleParser) error { return r.end(ruleset.Target{Action: ruleset.ActionReturn}) }},
	{"continue", func(r *ruleParser) error { return r.end(ruleset.Target{}) }},
	{"jump", func(r *ruleParser) error {
		return r.end(ruleset.Target{Action: ruleset.ActionJump, Chain: r.next().text})
	}},
	{"redirect to", (*ruleParser).redirect},
	{"dnat", (*ruleParser).dnat},
	{"tproxy", (*ruleParser).tproxy},
}

func (r *ruleParser) part() error {
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
func (r *ruleParser) matching() error {
	if len(r.does) > 0 {
		return errors.New("it matches after it has acted")
	}
	return nil
}

// values reads what a key is compared with: one value, a set's elements, or the negation of them.
func (r *ruleParser) values() (not bool, values []string, err error) {
	if err := r.matching(); err != nil {
		return false, nil, err
	}
	not = r.take("!=")
	_ = not || r.take("==")
	w := r.next()
	switch set, named := strings.CutPrefix(w.text, "@"); {
	case named && !w.quoted:
		var known bool
		if values, known = r.sets[set]; !known {
			return false, nil, fmt.Errorf("the elements of set %s are not known", set)
		}
	case w.text == "" || strings.ContainsAny(w.text, "<>="):
		return false, nil, errUnknown
	default:
		values = []string{w.text}
	}
	if len(values) == 0 {
		return false, nil, errors.New("an empty set")
	}
	return not, values, nil
}

func (r *ruleParser) rules() ([]ruleset.Rule, error) {
	switch {
	case len(r.does) == 0:
		r.does = []ruleset.Target{{}}
	case !r.final && slices.ContainsFunc(r.does, func(t ruleset.Target) bool { return t.Action == ruleset.ActionTProxy }):
		return nil, errors.New("a transparent proxy without accept")
	}
	if len(r.does) > 1 {
		for _, t := range r.does {
			setsMark := t.Action == ruleset.ActionSetMark || t.Action == ruleset.ActionRestoreMark
			setsConn := t.Action == ruleset.ActionSaveMark || t.Action == ruleset.ActionSetConnMark
			if setsMark && !r.base.Mark.IsZero() || setsConn && !r.base.ConnMark.IsZero() {
				return nil, errors.New("it acts again after it has changed the mark that it matches")
			}
		}
	}
	n := len(r.does)
	for _, values := range append(lengths(r.owners), len(r.protos), len(r.srcs), len(r.dsts), len(r.ins), len(r.outs)) {
		if n *= max(values, 1); n > maxRules { // before any of them is made
			return nil, fmt.Errorf("it is more than %d rules without its sets", maxRules)
		}
	}
	all := []ruleset.Rule{r.base}
	all = times(all, r.protos, func(x *ruleset.Rule, p ruleset.Proto) { x.Proto = p })
	all = times(all, r.srcs, func(x *ruleset.Rule, m ruleset.PrefixMatch) { x.Src = m })
	all = times(all, r.dsts, func(x *ruleset.Rule, m ruleset.PrefixMatch) { x.Dst = m })
	all = times(all, r.ins, func(x *ruleset.Rule, m ruleset.InterfaceMatch) { x.In = m })
	all = times(all, r.outs, func(x *ruleset.Rule, m ruleset.InterfaceMatch) { x.Out = m })
	for _, owner := range r.owners {
		all = times(all, owner, func(x *ruleset.Rule, m ruleset.OwnerMatch) { x.Owner = append(slices.Clip(x.Owner), m) })
	}
	return times(all, r.does, func(x *ruleset.Rule, t ruleset.Target) { x.Target = t }), nil
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
