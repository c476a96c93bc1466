package ruleset

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/align"
	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// Kind is the kind of a difference between the live rules and the wanted ones.
type Kind string

// The kinds of difference. A rule at the wrong place is missing at one and unexpected at the other.
const (
	Missing    Kind = "missing"
	Unexpected Kind = "unexpected"
)

// RoutingTable is the Table of a Difference in what rules need besides: policy routing
// and addresses of lo, which are its AddressChain.
const (
	RoutingTable = "routing"
	AddressChain = "address"
)

// Difference is one rule that is not as wanted.
type Difference struct {
	Kind   Kind   `json:"kind"`
	Family Family `json:"family"`
	// Table and Chain are where; Table may be RoutingTable.
	Table string `json:"table"`
	Chain string `json:"chain"`
	// Position is the rule's place in its chain, from 1: in the wanted chain
	// when missing, in the live chain when unexpected.
	Position int `json:"position"`
	// Rule is the rule's text; empty for a chain that should not be there.
	Rule string `json:"rule"`
}

// String returns for example "ipv4 nat/ISTIO_OUTPUT:3 missing: -d 127.0.0.1/32 -j RETURN". What
// cannot be printed is escaped: the rule may be anybody's.
func (d Difference) String() string {
	text := fmt.Sprintf("%s %s/%s:%d %s: %s", d.Family, d.Table, d.Chain, d.Position, d.Kind, d.Rule)
	if !strings.ContainsFunc(text, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Diff compares the live rules of the program's owner with the program, by rule and in order. Rules
// of others do not count, wherever they stand. It returns nil when the live rules are as wanted.
// Policy routing is not part of iptables-save, so it is not compared here.
func (p *Program) Diff(live *Saved) []Difference {
	var diffs []Difference
	predecessor := p.Owner.predecessor(live)
	for _, table := range Tables {
		for _, c := range p.table(table) {
			lc := live.chain(table, c.Name)
			diffs = append(diffs, p.diffChain(table, c, p.ownRules(lc, predecessor))...)
		}
	}
	return append(diffs, p.strays(live, predecessor)...)
}

// ownRules returns the rules of a live chain that are the owner's.
func (p *Program) ownRules(c *SavedChain, predecessor bool) []liveRule {
	if c == nil {
		return nil
	}
	var rules []liveRule
	if chains.IsBuiltin(c.Name) {
		for _, i := range p.Owner.builtinRules(c, predecessor) {
			rules = append(rules, liveRule{i + 1, c.Rules[i]})
		}
		return rules
	}
	for i, r := range c.Rules {
		rules = append(rules, liveRule{i + 1, r})
	}
	return rules
}

type liveRule struct {
	position int
	SavedRule
}

// strays finds rules of the owner's in chains that the program does not have.
func (p *Program) strays(live *Saved, predecessor bool) []Difference {
	if live == nil {
		return nil
	}
	var diffs []Difference
	for _, t := range live.Tables {
		led := p.Owner.othersLeadTo(t.Chains)
		for i := range t.Chains {
			c := &t.Chains[i]
			table, err := ParseTable(t.Name)
			if err != nil || p.Chain(table, c.Name) != nil || !chains.IsBuiltin(c.Name) && !p.Owner.OwnsChain(c.Name) {
				continue
			}
			rules := p.ownRules(c, predecessor)
			if len(rules) == 0 && !chains.IsBuiltin(c.Name) && !led[c.Name] {
				diffs = append(diffs, Difference{Kind: Unexpected, Family: p.Family, Table: t.Name, Chain: c.Name})
			}
			for _, r := range rules {
				diffs = append(diffs, Difference{Unexpected, p.Family, t.Name, c.Name, r.position, r.Text})
			}
		}
	}
	return diffs
}

// diffChain is the shortest edit script, from the longest common subsequence; for long chains see package align.
func (p *Program) diffChain(table Table, want Chain, live []liveRule) []Difference {
	var diffs []Difference
	align.Lists{
		N: len(want.Rules), M: len(live), SecondFirst: true,
		Same:  func(i, j int) bool { return live[j].Known && want.Rules[i].Equal(live[j].Rule) },
		First: func(i int) string { return want.Rules[i].Text(p.Family) },
		Second: func(j int) string {
			if !live[j].Known {
				return ""
			}
			return live[j].Rule.Text(p.Family)
		},
	}.Differences(func(i int) {
		diffs = append(diffs, Difference{Missing, p.Family, table.String(), want.Name, i + 1, want.Rules[i].Text(p.Family)})
	}, func(j int) {
		diffs = append(diffs, Difference{Unexpected, p.Family, table.String(), want.Name, live[j].position, live[j].Text})
	})
	return diffs
}
