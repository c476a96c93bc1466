package ruleset

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/text/lcs"
	"github.com/meshcni/meshcni/internal/text/visible"
)

// Kind is the kind of a difference between the live rules and the wanted ones.
type Kind string

// The kinds of difference. A rule at the wrong place is missing at one and unexpected at the other.
const (
	KindMissing    Kind = "missing"
	KindUnexpected Kind = "unexpected"
	// KindFate is a packet that stands for a kind of the pod's connections, and to which something else happens than the wanted rules do:
	// Rule describes both, and names the rule. KindUnknown is one of which that cannot be told, so it is not known whether anything differs; see
	// [Certain]. Table is empty, and Chain names the kind of connection.
	KindFate    Kind = "fate"
	KindUnknown Kind = "unknown"
)

// Certain returns the differences without those of which it is not known whether they are any.
func Certain(diffs []Difference) (certain []Difference) {
	for _, d := range diffs {
		if d.Kind != KindUnknown {
			certain = append(certain, d)
		}
	}
	return certain
}

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
	switch d.Kind {
	case KindFate:
		return visible.Line(fmt.Sprintf("%s %s: %s", d.Family, d.Chain, d.Rule))
	case KindUnknown:
		return visible.Line(fmt.Sprintf("%s %s, cannot tell: %s", d.Family, d.Chain, d.Rule))
	}
	return visible.Line(fmt.Sprintf("%s %s/%s:%d %s: %s", d.Family, d.Table, d.Chain, d.Position, d.Kind, d.Rule))
}

// Diff compares the live rules of the program's owner with the program, by rule and in order. Rules
// of others do not count, wherever they stand. It returns nil when the live rules are as wanted.
// Policy routing is not part of iptables-save, so it is not compared here. Positions are those of [Ruleset.Iptables]; of a program that
// would be too many rules of iptables, each is missing as it is.
func (p *FamilyRuleset) Diff(live LiveChains) []Difference {
	var diffs []Difference
	if plain, err := p.plain(); err == nil {
		p = plain
	}
	predecessor := p.Owner.predecessor(live)
	for _, table := range Tables {
		in := live.of(table)
		for _, c := range p.table(table) {
			diffs = append(diffs, p.diffChain(table, c, p.Owner.rules(in.named(c.Name), predecessor))...)
		}
	}
	return append(diffs, p.strays(live, predecessor)...)
}

// strays finds rules of the owner's in chains that the program does not have.
func (p *FamilyRuleset) strays(live LiveChains, predecessor bool) (diffs []Difference) {
	led := p.Owner.othersLeadTo(live)
	for i := range live {
		c := &live[i]
		table, err := ParseTable(c.Table)
		if err != nil || p.Chain(table, c.Name) != nil {
			continue
		}
		if len(c.Rules) == 0 && p.Owner.OwnsChain(c.Name) && !led[[2]string{c.Table, c.Name}] {
			diffs = append(diffs, Difference{Kind: KindUnexpected, Family: p.Family, Table: c.Table, Chain: c.Name})
		}
		for _, r := range p.Owner.rules(c, predecessor) {
			diffs = append(diffs, Difference{KindUnexpected, p.Family, c.Table, c.Name, r.Position, r.Text})
		}
	}
	return diffs
}

// diffChain is the shortest edit script, from the longest common subsequence; for long chains see package lcs.
func (p *FamilyRuleset) diffChain(table Table, want Chain, live []*LiveRule) []Difference {
	var diffs []Difference
	lcs.Lists{
		N: len(want.Rules), M: len(live), SecondFirst: true,
		Same:  func(i, j int) bool { return live[j].is(want.Rules[i]) },
		First: func(i int) string { return want.Rules[i].Text(p.Family) },
		Second: func(j int) string {
			if !live[j].plain {
				return ""
			}
			return live[j].Rules[0].Text(p.Family)
		},
	}.Differences(func(i int) {
		diffs = append(diffs, Difference{KindMissing, p.Family, table.String(), want.Name, i + 1, want.Rules[i].Text(p.Family)})
	}, func(j int) {
		diffs = append(diffs, Difference{KindUnexpected, p.Family, table.String(), want.Name, live[j].Position, live[j].Text})
	})
	return diffs
}
