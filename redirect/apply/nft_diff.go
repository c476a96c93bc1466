//go:build linux

package apply

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/text/lcs"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// diffLive compares rule by rule. A wanted rule that is missing is named as in the program that it
// comes from, once for each family; one that is not wanted, as nftables has it.
func diffLive(rs ruleset.Ruleset, want *nft.Table, live *nftLive) []ruleset.Difference {
	var diffs []ruleset.Difference
	liveSets := live.setContents()
	wantSets := map[string]string{}
	for i := range want.Sets {
		wantSets[want.Sets[i].Name] = canonicalElements(setElements(&want.Sets[i]))
	}
	in := func(m map[string]string) func(string) string { return func(name string) string { return m[name] } }
	byChain := live.byChain()
	dormant := live.table != nil && live.table.flags != 0
	for i := range want.Chains {
		c := &want.Chains[i]
		at := slices.IndexFunc(live.chains, func(l liveChain) bool { return l.name == c.Name })
		var rules []liveRule
		if at >= 0 && live.chains[at].is(*c) && !dormant {
			rules = byChain[c.Name]
		} else if at >= 0 {
			diffs = append(diffs, unexpected(&live.chains[at], 0, "chain of another kind"))
		}
		wantKeys := make([]string, len(c.Rules))
		for j := range c.Rules {
			var w nfnetlink.Writer
			writeExprs(&w, &c.Rules[j])
			wantKeys[j] = canonical(w.B, in(wantSets))
		}
		liveKeys := make([]string, len(rules))
		for j := range rules {
			liveKeys[j] = canonical(rules[j].exprs, in(liveSets))
		}
		var missing, extra []int
		lcs.Strings(wantKeys, liveKeys).Differences(func(i int) { missing = append(missing, i) }, func(j int) { extra = append(extra, j) })
		diffs = appendMissing(diffs, rs, c, missing)
		for _, j := range extra {
			diffs = append(diffs, unexpectedRule(&rules[j], j+1))
		}
		if at < 0 && len(c.Rules) == 0 {
			diffs = append(diffs, ruleset.Difference{Kind: ruleset.KindMissing, Family: ruleset.IPv4, Table: c.Table.String(), Chain: c.Chain})
		}
	}
	return append(diffs, strays(want, live, byChain)...)
}

// strays are the chains that are not wanted, with their rules.
func strays(want *nft.Table, live *nftLive, byChain map[string][]liveRule) (diffs []ruleset.Difference) {
	for i := range live.chains {
		c := &live.chains[i]
		if slices.ContainsFunc(want.Chains, func(w nft.Chain) bool { return w.Name == c.name }) {
			continue
		}
		rules := byChain[c.name]
		for j := range rules {
			diffs = append(diffs, unexpectedRule(&rules[j], j+1))
		}
		if len(rules) == 0 {
			diffs = append(diffs, unexpected(c, 0, ""))
		}
	}
	for _, t := range live.others {
		diffs = append(diffs, ruleset.Difference{Kind: ruleset.KindUnexpected, Family: ruleset.IPv4, Table: "inet " + t.name})
	}
	for i := range live.leftovers {
		diffs = append(diffs, unexpected(&live.leftovers[i], 0, "chain of iptables-nft"))
	}
	return diffs
}

// byChain are the rules of our table by the names of their chains.
func (l *nftLive) byChain() map[string][]liveRule {
	rules := map[string][]liveRule{}
	for _, r := range l.rules {
		rules[r.chain] = append(rules[r.chain], r)
	}
	return rules
}

func (l *nftLive) setContents() map[string]string {
	m := map[string]string{}
	for _, s := range l.sets {
		m[s.name] = canonicalElements(s.elements)
	}
	return m
}

// appendMissing adds the rules of the programs that the nftables rules of a
// chain stand for. Two may stand for one: a TPROXY and what drops when it cannot.
func appendMissing(diffs []ruleset.Difference, rs ruleset.Ruleset, c *nft.Chain, missing []int) []ruleset.Difference {
	told := map[nft.Source]bool{}
	for _, j := range missing {
		for _, s := range c.Rules[j].Sources {
			if told[s] {
				continue
			}
			told[s] = true
			rule := &rs.Family(s.Family).Chain(c.Table, c.Chain).Rules[s.Position-1]
			diffs = append(diffs, ruleset.Difference{
				Kind: ruleset.KindMissing, Family: s.Family, Table: c.Table.String(), Chain: c.Chain,
				Position: s.Position, Rule: rule.Text(s.Family),
			})
		}
	}
	return diffs
}

func unexpected(c *liveChain, position int, text string) ruleset.Difference {
	table, chain := c.table, c.name
	if c.family == unix.NFPROTO_INET {
		table, chain = splitChain(c.name)
	}
	f := ruleset.IPv4
	if c.family == unix.NFPROTO_IPV6 {
		f = ruleset.IPv6
	}
	return ruleset.Difference{Kind: ruleset.KindUnexpected, Family: f, Table: table, Chain: chain, Position: position, Rule: text}
}

// splitChain takes a chain's name in our table apart.
func splitChain(name string) (table, chain string) {
	if table, chain, ok := strings.Cut(name, "/"); ok {
		return table, chain
	}
	return "", name
}

// unexpectedRule is of IPv4 unless the rule says IPv6: a rule for both is one.
func unexpectedRule(r *liveRule, position int) ruleset.Difference {
	d := unexpected(&liveChain{family: r.family, table: r.table, name: r.chain}, position, nft.Join(describe(r)))
	if strings.Contains(d.Rule, "meta nfproto ipv6") {
		d.Family = ruleset.IPv6
	}
	return d
}
