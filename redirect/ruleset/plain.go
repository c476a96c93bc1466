package ruleset

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// Iptables returns the ruleset as iptables has it, which knows no sets: each rule becomes one for each of its prefixes, and for each group of
// ports that fits one match. Positions of a [Difference] that iptables finds are those of that ruleset. It is an error if both families then
// have more than 10,000 rules, which is known before any is made; nftables has no such bound, see [PrefixMatch].
func (rs Ruleset) Iptables() (Ruleset, error) {
	total := 0
	for _, f := range Families {
		total = plus(total, rs.Family(f).plainRules())
	}
	if err := few(total); err != nil {
		return Ruleset{}, err
	}
	var out Ruleset
	for _, f := range Families {
		if p := rs.Family(f); p != nil {
			p, err := p.plain()
			if err != nil {
				return Ruleset{}, err
			}
			out.Set(p)
		}
	}
	return out, nil
}

// orPlain returns the ruleset as iptables has it, or, if that cannot have it, as it is.
func (rs Ruleset) orPlain() Ruleset {
	if plain, err := rs.Iptables(); err == nil {
		return plain
	}
	return rs
}

func few(rules int) error {
	if rules > chains.MaxRules {
		return fmt.Errorf("ruleset: iptables, which knows no sets, would have %d rules, one for each prefix and each %d ports, and %d are the most; backend nftables takes them",
			rules, chains.MaxPortSlots, chains.MaxRules)
	}
	return nil
}

// plain is the program with rules of iptables only: itself if it has no others.
func (p *FamilyRuleset) plain() (*FamilyRuleset, error) {
	n := p.plainRules()
	if p == nil || n == p.NumRules() {
		return p, nil
	}
	if err := few(n); err != nil {
		return nil, err
	}
	out := *p
	out.Chains = slices.Clone(p.Chains)
	for i := range out.Chains {
		c := &out.Chains[i]
		var rules []Rule
		for n := range c.Rules {
			rules = c.Rules[n].appendPlain(rules)
		}
		c.Rules = rules
	}
	return &out, nil
}

// plainRules counts the rules that iptables would have; [math.MaxInt] if an int cannot hold it.
func (p *FamilyRuleset) plainRules() (n int) {
	if p == nil {
		return 0
	}
	for i := range p.Chains {
		for j := range p.Chains[i].Rules {
			r := &p.Chains[i].Rules[j]
			all := times(1+len(r.Src.More), 1+len(r.Dst.More))
			all = times(times(all, numChunks(r.SrcPorts)), numChunks(r.DstPorts))
			n = plus(n, all)
		}
	}
	return n
}

// appendPlain adds the rules that iptables has in place of r.
func (r *Rule) appendPlain(to []Rule) []Rule {
	one := *r
	for _, sports := range chunks(r.SrcPorts) {
		for _, dports := range chunks(r.DstPorts) {
			one.SrcPorts, one.DstPorts = sports, dports
			for i := range 1 + len(r.Src.More) {
				one.Src = r.Src.at(i)
				for j := range 1 + len(r.Dst.More) {
					one.Dst = r.Dst.at(j)
					to = append(to, one)
				}
			}
		}
	}
	return to
}

// at is the match of one of the prefixes.
func (m PrefixMatch) at(i int) PrefixMatch {
	if i > 0 {
		m.Prefix = m.More[i-1]
	}
	m.More = nil
	return m
}

// list returns all prefixes of the match.
func (m PrefixMatch) list() []netip.Prefix {
	if m.IsZero() {
		return nil
	}
	return append([]netip.Prefix{m.Prefix}, m.More...)
}

// chunk returns how many of the ranges fit one match of iptables.
func chunk(ranges []PortRange) int {
	n := 0
	for i := range ranges {
		if n += slots(ranges[i : i+1]); n > chains.MaxPortSlots {
			return i
		}
	}
	return len(ranges)
}

// chunks splits ports into matches that iptables takes.
func chunks(m PortMatch) (all []PortMatch) {
	for !m.Not {
		n := chunk(m.Ranges)
		if n == len(m.Ranges) {
			break
		}
		all = append(all, PortMatch{Ranges: m.Ranges[:n:n]})
		m.Ranges = m.Ranges[n:]
	}
	return append(all, m)
}

func numChunks(m PortMatch) int {
	all := 1
	for ranges := m.Ranges; !m.Not; all++ {
		n := chunk(ranges)
		if n == len(ranges) {
			break
		}
		ranges = ranges[n:]
	}
	return all
}

// plus and times are for numbers that are not negative. They return [math.MaxInt] instead of a larger result.
func plus(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

func times(a, b int) int {
	if a != 0 && b > math.MaxInt/a {
		return math.MaxInt
	}
	return a * b
}
