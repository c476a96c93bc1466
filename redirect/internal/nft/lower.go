package nft

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/text/lcs"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Table is a ruleset as one nftables table of family inet for both families.
//
// Each chain becomes one chain. Each rule becomes one rule, with two exceptions that change no packet's fate:
// a rule of several prefixes or ports has them in a set, neighbouring rules that differ only in their ports or in one prefix become one such rule, and a rule that both
// families share is written once. [Rule.Sources] leads back to the originals.
type Table struct {
	Name   string
	Sets   []Set
	Chains []Chain
}

// Set is a named set of ports, or of prefixes of one family. Elements are sorted and do not overlap.
type Set struct {
	Name     string
	Ports    []ruleset.PortRange
	Prefixes []netip.Prefix
}

// maxBitmap is the most ports a set without intervals holds. Linux keeps such a set as a bitmap with a list, which it
// walks for each new port (nft_bitmap_insert in net/netfilter/nft_set_bitmap.c): the 32768 ports that annotations can
// name would take seconds. A set of intervals is a tree.
const maxBitmap = 500

// Interval reports whether the set needs nftables' interval flag.
func (s *Set) Interval() bool {
	return len(s.Ports) > maxBitmap || slices.ContainsFunc(s.Ports, func(r ruleset.PortRange) bool { return r.First != r.Last }) ||
		slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool { return !p.IsSingleIP() })
}

// Chain is a chain of the nftables table. Its Name is TABLE/CHAIN, because one
// nftables table holds the chains of four iptables tables.
type Chain struct {
	Name  string
	Table ruleset.Table
	Chain string
	// Type, Hook and Priority are a base chain's; Hook is empty for the others.
	Type, Hook string
	Priority   int32
	Rules      []Rule
}

// Rule is one rule of the nftables table. Prefixes and ports are in the lists here, and the embedded rule only says
// whether they are negated. An empty list matches everything, a single element is written in place, and more elements
// are in the named set. A jump's target is a [Chain.Name].
type Rule struct {
	ruleset.Rule
	// Family is zero for a rule of both families.
	Family                 ruleset.Family
	Srcs, Dsts             []netip.Prefix
	SrcRanges, DstRanges   []ruleset.PortRange
	SrcSet, DstSet         string
	SrcPortSet, DstPortSet string
	Sources                []Source
}

// Source is the position of a rule in its chain of one family's program, from 1.
type Source struct {
	Family   ruleset.Family
	Position int
}

// Lower returns the table of a ruleset. A family without program has no rules in it.
func Lower(rs ruleset.Ruleset) *Table {
	t := &Table{Name: TableName(rs.Owner())}
	for _, table := range ruleset.Tables {
		for _, name := range chainNames(rs, table) {
			c := Chain{Name: table.String() + "/" + name, Table: table, Chain: name}
			if chains.IsBuiltin(name) {
				c.Type, c.Hook, c.Priority = hook(table, name)
			}
			c.Rules = mergeFamilies(lowerRules(rs.IPv4, table, name), lowerRules(rs.IPv6, table, name))
			t.Chains = append(t.Chains, c)
		}
	}
	t.nameSets(rs.Owner())
	return t
}

// chainNames lists the chains of a table in any family, built-in ones first.
func chainNames(rs ruleset.Ruleset, t ruleset.Table) []string {
	var base, ours []string
	for _, f := range ruleset.Families {
		for _, c := range chainsOf(rs.Family(f), t) {
			names := &ours
			if chains.IsBuiltin(c.Name) {
				names = &base
			}
			if !slices.Contains(*names, c.Name) {
				*names = append(*names, c.Name)
			}
		}
	}
	return append(base, ours...)
}

func chainsOf(p *ruleset.FamilyRuleset, t ruleset.Table) (chains []ruleset.Chain) {
	if p != nil {
		for _, c := range p.Chains {
			if c.Table == t {
				chains = append(chains, c)
			}
		}
	}
	return chains
}

// hook returns the type and priority of a built-in chain. Source of priorities: enum nf_ip_hook_priorities in
// linux/netfilter_ipv4.h. A new mark in mangle OUTPUT must reroute the packet, which only type route does.
func hook(t ruleset.Table, chain string) (typ, hook string, priority int32) {
	typ, hook, priority = "filter", strings.ToLower(chain), priorities[t]
	switch {
	case t == ruleset.Mangle && chain == ruleset.Output:
		typ = "route"
	case t == ruleset.NAT && (chain == ruleset.Prerouting || chain == ruleset.Output):
		typ, priority = "nat", -100
	case t == ruleset.NAT:
		typ = "nat"
	}
	return typ, hook, priority
}

var priorities = map[ruleset.Table]int32{ruleset.Raw: -300, ruleset.Mangle: -150, ruleset.NAT: 100}

// lowerRules lowers one chain of one family and joins neighbouring rules.
func lowerRules(p *ruleset.FamilyRuleset, t ruleset.Table, chain string) []Rule {
	var c *ruleset.Chain
	if p != nil {
		c = p.Chain(t, chain)
	}
	if c == nil {
		return nil
	}
	rules := make([]Rule, 0, len(c.Rules)+1)
	for i := range c.Rules {
		r, possible := lowerRule(&c.Rules[i], p.Family, i+1)
		if !possible {
			continue
		}
		switch r.Target.Action {
		case ruleset.ActionJump:
			r.Target.Chain = t.String() + "/" + r.Target.Chain
		case ruleset.ActionLog:
			r.Target.Prefix = plain(r.Target.Prefix)
		}
		if n := len(rules); n > 0 && rules[n-1].join(&r) {
			continue
		}
		rules = append(rules, r)
	}
	// iptables' TPROXY drops a packet if nothing listens. In nftables the packet
	// goes on to the next rule, so that is one that drops it.
	for i := len(rules) - 1; i >= 0; i-- {
		if rules[i].Target.Action == ruleset.ActionTProxy {
			lost := rules[i]
			lost.Target, lost.Comment = ruleset.Target{Action: ruleset.ActionDrop}, "the proxy does not listen"
			rules = slices.Insert(rules, i+1, lost)
		}
	}
	return rules
}

// lowerRule lowers one rule. It is not possible if the rule matches no packet.
func lowerRule(from *ruleset.Rule, f ruleset.Family, position int) (r Rule, possible bool) {
	r = Rule{Rule: *from, Family: f, Sources: []Source{{f, position}}}
	r.Src.Prefix, r.Dst.Prefix, r.Src.More, r.Dst.More = netip.Prefix{}, netip.Prefix{}, nil, nil
	r.SrcPorts.Ranges, r.DstPorts.Ranges = nil, nil
	var ok [4]bool
	r.Srcs, ok[0] = lowerPrefix(from.Src)
	r.Dsts, ok[1] = lowerPrefix(from.Dst)
	r.SrcRanges, ok[2] = lowerPorts(from.SrcPorts)
	r.DstRanges, ok[3] = lowerPorts(from.DstPorts)
	return r, ok == [4]bool{true, true, true, true}
}

// lowerPrefix returns the match's prefixes, or nil for one that matches every address.
func lowerPrefix(m ruleset.PrefixMatch) (prefixes []netip.Prefix, possible bool) {
	if !m.IsZero() && m.Prefix.Bits() > 0 {
		return append([]netip.Prefix{m.Prefix.Masked()}, m.More...), true
	}
	return nil, m.IsZero() || !m.Not
}

func lowerPorts(m ruleset.PortMatch) (ranges []ruleset.PortRange, possible bool) {
	ranges = normalRanges(slices.Clone(m.Ranges))
	if len(ranges) == 1 && ranges[0] == (ruleset.PortRange{First: 0, Last: 65535}) {
		return nil, !m.Not
	}
	return ranges, true
}

// join makes r match what o matches as well, if they differ in a single list that is not negated. With a target that is
// not final a packet that both match must meet it twice, so the lists must then be disjoint.
func (r *Rule) join(o *Rule) bool {
	if r.Comment != o.Comment || !r.Rule.Equal(o.Rule) {
		return false
	}
	srcs, dsts := slices.Equal(r.Srcs, o.Srcs), slices.Equal(r.Dsts, o.Dsts)
	sports, dports := slices.Equal(r.SrcRanges, o.SrcRanges), slices.Equal(r.DstRanges, o.DstRanges)
	final := final(r.Target.Action)
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

// final reports whether a packet leaves the chain by the action.
func final(a ruleset.Action) bool {
	switch a {
	case ruleset.ActionAccept, ruleset.ActionDrop, ruleset.ActionReturn, ruleset.ActionRedirect, ruleset.ActionDNAT, ruleset.ActionTProxy:
		return true
	}
	return false
}

// joinPrefixes adds a rule's single prefix to a sorted list without overlaps.
// Like joinRanges it refuses an empty list, which matches everything.
func joinPrefixes(a, b []netip.Prefix, final bool) ([]netip.Prefix, bool) {
	if len(a) == 0 || len(b) != 1 {
		return a, false
	}
	p := b[0]
	if last := a[len(a)-1]; !last.Overlaps(p) && last.Addr().Less(p.Addr()) {
		return append(a, p), true // the usual case: the rules are sorted
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

func joinRanges(a, b []ruleset.PortRange, final bool) ([]ruleset.PortRange, bool) {
	overlap := func(r ruleset.PortRange) bool {
		return slices.ContainsFunc(b, func(o ruleset.PortRange) bool { return r.First <= o.Last && o.First <= r.Last })
	}
	if len(a) > 0 && len(b) > 0 && a[len(a)-1].Last < b[0].First {
		return append(a, b...), true // one set of ports, split over several rules
	}
	if len(a) == 0 || len(b) == 0 || !final && slices.ContainsFunc(a, overlap) {
		return a, false
	}
	return normalRanges(slices.Concat(a, b)), true
}

// normalRanges sorts ranges and merges those that overlap.
func normalRanges(ranges []ruleset.PortRange) []ruleset.PortRange {
	slices.SortFunc(ranges, func(a, b ruleset.PortRange) int { return cmp.Compare(a.First, b.First) })
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

// common reports whether an IPv4 and an IPv6 rule can be one rule for both.
func (r *Rule) common(o *Rule) bool {
	return len(r.Srcs)+len(r.Dsts)+len(o.Srcs)+len(o.Dsts) == 0 && r.Target.Action != ruleset.ActionDNAT &&
		r.Rule.Equal(o.Rule) && slices.Equal(r.SrcRanges, o.SrcRanges) && slices.Equal(r.DstRanges, o.DstRanges)
}

// key is the same for rules that are common, and "" for a rule of one family only.
func (r *Rule) key() string {
	if len(r.Srcs)+len(r.Dsts) > 0 || r.Target.Action == ruleset.ActionDNAT {
		return ""
	}
	rule := r.Rule // whose ports are in the ranges
	rule.SrcPorts.Ranges, rule.DstPorts.Ranges = r.SrcRanges, r.DstRanges
	return rule.Text(ruleset.IPv4) + (&Set{Ports: append(slices.Clone(r.SrcRanges), r.DstRanges...)}).content()
}

// mergeFamilies interleaves the rules of two families. Any order is right that keeps each family's own, since rules of
// one do not match packets of the other. The longest common subsequence gives the shortest chain.
func mergeFamilies(a, b []Rule) []Rule {
	shared := lcs.Lists{
		N: len(a), M: len(b),
		Same:  func(i, j int) bool { return a[i].common(&b[j]) },
		First: func(i int) string { return a[i].key() }, Second: func(j int) string { return b[j].key() },
	}.Pairs()
	out := make([]Rule, 0, len(a)+len(b)-len(shared))
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

// nameSets makes a set of each list with several elements. Equal lists share one.
func (t *Table) nameSets(owner ruleset.Ownership) {
	names := setNames{byContent: map[string]string{}, taken: map[string]bool{}, last: map[string]int{}}
	for i := range t.Chains {
		c := &t.Chains[i]
		base := c.Table.String() + "_" + strings.ToLower(strings.TrimPrefix(c.Chain, owner.Prefix)) + "_"
		for j := range c.Rules {
			r := &c.Rules[j]
			ip := "ip_"
			if r.Family == ruleset.IPv6 {
				ip = "ip6_"
			}
			r.SrcSet = t.set(&names, base+ip+"saddr", Set{Prefixes: r.Srcs})
			r.DstSet = t.set(&names, base+ip+"daddr", Set{Prefixes: r.Dsts})
			r.SrcPortSet = t.set(&names, base+"sport", Set{Ports: r.SrcRanges})
			r.DstPortSet = t.set(&names, base+"dport", Set{Ports: r.DstRanges})
		}
	}
}

// setNames finds a set by its content or its name; last counts the suffixes that were tried for a name.
type setNames struct {
	byContent map[string]string
	taken     map[string]bool
	last      map[string]int
}

func (t *Table) set(names *setNames, name string, s Set) string {
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

// content is a key for the elements.
func (s *Set) content() string {
	b := make([]byte, 0, 1+4*len(s.Ports)+20*len(s.Prefixes))
	if len(s.Ports) > 0 {
		b = append(b, ':') // tells ports from prefixes
	}
	for _, r := range s.Ports {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, r.First), r.Last)
	}
	for _, p := range s.Prefixes {
		b = append(p.AppendTo(b), ',')
	}
	return string(b)
}

// defaultTable is the table of an owner without prefix.
const defaultTable = "mesh"

// TableName returns the name of the owner's nftables table: the prefix in lower case without its
// final underscore, "istio" for "ISTIO_". A name that is a keyword of nft keeps the underscore.
func TableName(o ruleset.Ownership) string {
	name := strings.ToLower(strings.TrimRight(o.Prefix, "_"))
	switch {
	case name == "":
		return defaultTable
	case strings.Contains(keywords, " "+name+" "):
		return name + "_"
	}
	return name
}

// keywords are the words that nft does not take for a table's name: those of its
// library and manual that nft 1.0.6 refuses, and those that later versions added.
const keywords = " accept add ah all and arp bridge cgroup chain comment comp constant continue counter cpu create ct " +
	"day dccp define delete describe destroy device devices dnat drop dst dup dynamic ecn element elements eq esp ether " +
	"exists expires export exthdr fib flags flow flowtable flush frag fwd gc get goto gt handle hbh hook hour ibriport " +
	"ibrname icmp icmpv6 igmp iif iifgroup iifname iiftype import include index inet insert interval ip ip6 ipsec jhash " +
	"jump last limit list log lshift lt map mark masquerade meta meter mh missing monitor ne netdev nftrace not notrack " +
	"numgen obriport obrname offload oif oifgroup oifname oiftype optstrip or osf pkttype policy position priority queue " +
	"quota random redefine redirect reject rename replace reset return rshift rt rt0 rt2 rtclassid rule ruleset sctp " +
	"secmark set size skgid skuid snat socket srh symhash synproxy table tcp th time timeout tproxy tunnel type typeof udp " +
	"udplite undefine update vlan vmap xor xt "
