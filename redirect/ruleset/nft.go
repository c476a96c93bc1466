package ruleset

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/align"
)

// NFTTable is a [Ruleset] as one nftables table of family inet, which holds
// what both families' programs do. It is a value: [Ruleset.NFT] is its text,
// package redirect/apply writes it by netlink.
//
// Chains stay one to one with the program's. Rules do too, but for two savings
// that change no packet's fate: neighbours that differ only in their ports or
// only in one prefix become one rule with a set, and what both families have
// in common is said once. [NFTRule.Sources] leads back.
type NFTTable struct {
	Name   string
	Sets   []NFTSet
	Chains []NFTChain
}

// NFTSet is a named set of ports, or of prefixes of one family. Elements are
// sorted and do not overlap.
type NFTSet struct {
	Name     string
	Ports    []PortRange
	Prefixes []netip.Prefix
}

// maxBitmap is how many ports a set of single ones has at most. Linux keeps it
// as a bitmap beside a list, and for each new port walks all of the list
// (net/netfilter/nft_set_bitmap.c, nft_bitmap_insert): the 32768 that a pod's
// author may name take seconds. A set of intervals is a tree.
const maxBitmap = 500

// Interval reports whether the set is one of intervals: an element is more than
// one value, or there are many ports.
func (s *NFTSet) Interval() bool {
	return len(s.Ports) > maxBitmap || slices.ContainsFunc(s.Ports, func(r PortRange) bool { return r.First != r.Last }) ||
		slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool { return !p.IsSingleIP() })
}

// NFTChain is a chain. Its Name is TABLE/CHAIN, as a trace names it: one
// nftables table holds what iptables has in four, with the same names in each.
type NFTChain struct {
	Name  string
	Table Table
	Chain string
	// Type, Hook and Priority are a base chain's; Hook is empty for the others.
	Type, Hook string
	Priority   int32
	Rules      []NFTRule
}

// NFTRule is one rule. Its matches are those of Rule, but for prefixes and
// ports: of those Rule says only whether they are negated. No elements match
// anything, one is written in place, more are the set of the name. A jump's
// chain is named as [NFTChain.Name] is.
type NFTRule struct {
	Rule
	// Family is the one that the rule is for, zero for both.
	Family                 Family
	Srcs, Dsts             []netip.Prefix
	SrcRanges, DstRanges   []PortRange
	SrcSet, DstSet         string
	SrcPortSet, DstPortSet string
	Sources                []NFTSource
}

// NFTSource is the place of a rule in the program of a family, from 1.
type NFTSource struct {
	Family   Family
	Position int
}

// Owner is the owner of the ruleset's programs; zero when there are none.
func (rs Ruleset) Owner() Owner {
	for _, f := range Families {
		if p := rs.Program(f); p != nil {
			return p.Owner
		}
	}
	return Owner{}
}

// NFTables returns the nftables view of the ruleset. A family without program
// has no rules in it.
func (rs Ruleset) NFTables() *NFTTable {
	t := &NFTTable{Name: rs.Owner().NFTTable()}
	for _, table := range Tables {
		for _, name := range rs.chainNames(table) {
			c := NFTChain{Name: table.String() + "/" + name, Table: table, Chain: name}
			if IsBuiltin(name) {
				c.Type, c.Hook, c.Priority = nftHook(table, name)
			}
			c.Rules = mergeFamilies(nftRules(rs.IPv4, table, name), nftRules(rs.IPv6, table, name))
			t.Chains = append(t.Chains, c)
		}
	}
	t.nameSets(rs.Owner())
	return t
}

// chainNames lists the chains of a table in any family, built-in ones first.
func (rs Ruleset) chainNames(t Table) []string {
	var base, ours []string
	for _, f := range Families {
		for _, c := range rs.Program(f).table(t) {
			names := &ours
			if IsBuiltin(c.Name) {
				names = &base
			}
			if !slices.Contains(*names, c.Name) {
				*names = append(*names, c.Name)
			}
		}
	}
	return append(base, ours...)
}

// nftHook gives a built-in chain its type and priority. Source of priorities:
// enum nf_ip_hook_priorities in linux/netfilter_ipv4.h. A change of mark in
// mangle OUTPUT has the packet routed anew, which only type route does.
func nftHook(t Table, chain string) (typ, hook string, priority int32) {
	hook = strings.ToLower(chain)
	switch t {
	case Raw:
		return "filter", hook, -300
	case Mangle:
		if chain == Output {
			return "route", hook, -150
		}
		return "filter", hook, -150
	case NAT:
		if chain == Prerouting || chain == Output {
			return "nat", hook, -100
		}
		return "nat", hook, 100
	}
	return "filter", hook, 0
}

// nftRules makes the rules of one family's chain, neighbours joined.
func nftRules(p *Program, t Table, chain string) []NFTRule {
	var c *Chain
	if p != nil {
		c = p.Chain(t, chain)
	}
	if c == nil {
		return nil
	}
	rules := make([]NFTRule, 0, len(c.Rules)+1)
	for i := range c.Rules {
		r, possible := nftRule(&c.Rules[i], p.Family, i+1)
		if !possible {
			continue
		}
		switch r.Target.Action {
		case Jump:
			r.Target.Chain = t.String() + "/" + r.Target.Chain
		case Log:
			r.Target.Prefix = nftString(r.Target.Prefix)
		}
		if n := len(rules); n > 0 && rules[n-1].join(&r) {
			continue
		}
		rules = append(rules, r)
	}
	// A TPROXY that finds no listener drops the packet; nftables' goes on with
	// the next rule. So there is one, with the same matches, to drop it.
	for i := len(rules) - 1; i >= 0; i-- {
		if rules[i].Target.Action == TProxy {
			lost := rules[i]
			lost.Target, lost.Comment = Target{Action: Drop}, "the proxy does not listen"
			rules = slices.Insert(rules, i+1, lost)
		}
	}
	return rules
}

// nftRule splits a rule into operands. It is not possible where the rule can
// match no packet.
func nftRule(from *Rule, f Family, position int) (r NFTRule, possible bool) {
	r = NFTRule{Rule: *from, Family: f, Sources: []NFTSource{{f, position}}}
	r.Src.Prefix, r.Dst.Prefix = netip.Prefix{}, netip.Prefix{}
	r.SrcPorts.Ranges, r.DstPorts.Ranges = nil, nil
	for _, m := range []struct {
		m  PrefixMatch
		to *[]netip.Prefix
	}{{from.Src, &r.Srcs}, {from.Dst, &r.Dsts}} {
		switch {
		case m.m.IsZero():
		case m.m.Prefix.Bits() > 0:
			*m.to = []netip.Prefix{m.m.Prefix.Masked()}
		case m.m.Not:
			return r, false
		}
	}
	for _, m := range []struct {
		m  PortMatch
		to *[]PortRange
	}{{from.SrcPorts, &r.SrcRanges}, {from.DstPorts, &r.DstRanges}} {
		ranges := normalRanges(slices.Clone(m.m.Ranges))
		if len(ranges) == 1 && ranges[0] == (PortRange{0, 65535}) {
			if m.m.Not {
				return r, false
			}
			ranges = nil
		}
		*m.to = ranges
	}
	return r, true
}

// join makes r match what o matches too, when both differ in a single operand
// that is a plain list. A packet matched by both would do o's target after
// r's; where that is not the end of its walk, the lists must be disjoint.
func (r *NFTRule) join(o *NFTRule) bool {
	if r.Comment != o.Comment || !r.Rule.Equal(o.Rule) {
		return false
	}
	srcs, dsts := slices.Equal(r.Srcs, o.Srcs), slices.Equal(r.Dsts, o.Dsts)
	sports, dports := slices.Equal(r.SrcRanges, o.SrcRanges), slices.Equal(r.DstRanges, o.DstRanges)
	final := r.Target.final()
	joined := false
	switch {
	case dsts && sports && dports && !r.Src.Not:
		r.Srcs, joined = joinPrefixes(r.Srcs, o.Srcs, final)
	case srcs && sports && dports && !r.Dst.Not:
		r.Dsts, joined = joinPrefixes(r.Dsts, o.Dsts, final)
	case srcs && dsts && dports && !r.SrcPorts.Not:
		r.SrcRanges, joined = joinRanges(r.SrcRanges, o.SrcRanges, final)
	case srcs && dsts && sports && !r.DstPorts.Not:
		r.DstRanges, joined = joinRanges(r.DstRanges, o.DstRanges, final)
	}
	if joined {
		r.Sources = append(r.Sources, o.Sources...)
	}
	return joined
}

// final reports whether a packet that meets the target leaves the chain.
func (t Target) final() bool {
	switch t.Action {
	case Accept, Drop, Return, Redirect, DNAT, TProxy:
		return true
	}
	return false
}

// joinPrefixes adds a rule's one prefix to a sorted list without overlaps; like
// joinRanges it refuses an empty list, which matches anything.
func joinPrefixes(a, b []netip.Prefix, final bool) ([]netip.Prefix, bool) {
	if len(a) == 0 || len(b) != 1 {
		return a, false
	}
	p := b[0]
	if last := a[len(a)-1]; !last.Overlaps(p) && last.Addr().Less(p.Addr()) {
		return append(a, p), true // what most lists are: sorted
	}
	// Prefixes either nest or are disjoint, and the larger sorts first.
	at, _ := slices.BinarySearchFunc(a, p, func(x, y netip.Prefix) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
	})
	inside := at > 0 && a[at-1].Overlaps(p)
	end := at
	for end < len(a) && p.Overlaps(a[end]) {
		end++
	}
	if !final && (inside || end > at) {
		return a, false
	}
	if !inside {
		a = slices.Replace(a, at, end, p)
	}
	return a, true
}

func joinRanges(a, b []PortRange, final bool) ([]PortRange, bool) {
	overlap := func(r PortRange) bool {
		return slices.ContainsFunc(b, func(o PortRange) bool { return r.First <= o.Last && o.First <= r.Last })
	}
	if len(a) > 0 && len(b) > 0 && a[len(a)-1].Last < b[0].First {
		return append(a, b...), true // ports of one set, in several rules
	}
	if len(a) == 0 || len(b) == 0 || !final && slices.ContainsFunc(a, overlap) {
		return a, false
	}
	return normalRanges(slices.Concat(a, b)), true
}

// normalRanges sorts, and merges what overlaps.
func normalRanges(ranges []PortRange) []PortRange {
	slices.SortFunc(ranges, func(a, b PortRange) int { return cmp.Compare(a.First, b.First) })
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 && r.First <= out[n-1].Last {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// common reports whether a rule of IPv4 and one of IPv6 are the same rule.
func (r *NFTRule) common(o *NFTRule) bool {
	return len(r.Srcs)+len(r.Dsts)+len(o.Srcs)+len(o.Dsts) == 0 && r.Target.Action != DNAT &&
		r.Rule.Equal(o.Rule) && slices.Equal(r.SrcRanges, o.SrcRanges) && slices.Equal(r.DstRanges, o.DstRanges)
}

// key is equal for rules that are common; "" for one that no other is.
func (r *NFTRule) key() string {
	if len(r.Srcs)+len(r.Dsts) > 0 || r.Target.Action == DNAT {
		return ""
	}
	rule := r.Rule // whose ports are in the ranges
	rule.SrcPorts.Ranges, rule.DstPorts.Ranges = r.SrcRanges, r.DstRanges
	return rule.Text(IPv4)
}

// mergeFamilies interleaves two families' rules. Each family's own stay in
// order, and those of the other do not match its packets, so any interleaving
// is right; the longest common subsequence makes it the shortest.
func mergeFamilies(a, b []NFTRule) []NFTRule {
	shared := align.Lists{
		N: len(a), M: len(b),
		Same:  func(i, j int) bool { return a[i].common(&b[j]) },
		First: func(i int) string { return a[i].key() }, Second: func(j int) string { return b[j].key() },
	}.Pairs()
	out := make([]NFTRule, 0, len(a)+len(b)-len(shared))
	i, j := 0, 0
	for _, both := range shared {
		out = append(append(out, a[i:both.I]...), b[j:both.J]...)
		r := a[both.I]
		r.Family = 0
		r.Sources = slices.Concat(r.Sources, b[both.J].Sources)
		out = append(out, r)
		i, j = both.I+1, both.J+1
	}
	return append(append(out, a[i:]...), b[j:]...)
}

// nameSets gives a name to each list of more than one element. Equal lists
// share a set.
func (t *NFTTable) nameSets(owner Owner) {
	names := setNames{byContent: map[string]string{}, taken: map[string]bool{}, last: map[string]int{}}
	for i := range t.Chains {
		c := &t.Chains[i]
		base := c.Table.String() + "_" + strings.ToLower(strings.TrimPrefix(c.Chain, owner.Prefix)) + "_"
		for j := range c.Rules {
			r := &c.Rules[j]
			ip := "ip_"
			if r.Family == IPv6 {
				ip = "ip6_"
			}
			r.SrcSet = t.set(&names, base+ip+"saddr", NFTSet{Prefixes: r.Srcs})
			r.DstSet = t.set(&names, base+ip+"daddr", NFTSet{Prefixes: r.Dsts})
			r.SrcPortSet = t.set(&names, base+"sport", NFTSet{Ports: r.SrcRanges})
			r.DstPortSet = t.set(&names, base+"dport", NFTSet{Ports: r.DstRanges})
		}
	}
}

// setNames are the names of a table's sets, also by what the sets hold, and how
// often a name was taken already when one was wanted.
type setNames struct {
	byContent map[string]string
	taken     map[string]bool
	last      map[string]int
}

func (t *NFTTable) set(names *setNames, name string, s NFTSet) string {
	if len(s.Ports)+len(s.Prefixes) < 2 {
		return ""
	}
	content := s.content()
	if known, ok := names.byContent[content]; ok {
		return known
	}
	s.Name = name
	for names.taken[s.Name] {
		names.last[name]++
		s.Name = name + "_" + strconv.Itoa(names.last[name]+1)
	}
	names.taken[s.Name] = true
	names.byContent[content] = s.Name
	t.Sets = append(t.Sets, s)
	return s.Name
}

// content is equal for sets of equal elements.
func (s *NFTSet) content() string {
	b := make([]byte, 0, 1+4*len(s.Ports)+20*len(s.Prefixes))
	if len(s.Ports) > 0 {
		b = append(b, ':') // no list of prefixes begins so
	}
	for _, r := range s.Ports {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, r.First), r.Last)
	}
	for _, p := range s.Prefixes {
		b = append(p.AppendTo(b), ',')
	}
	return string(b)
}
