package ruleset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// fromNFT adds the rules of nftables to the programs of both families, and returns those that are not understood.
func (l Live) fromNFT(rs Ruleset) Live {
	x := nftLowerer{rs: rs, at: map[chainName]int{}, refused: map[[4]string]bool{}}
	all := l.chains()
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(c *LiveChain) bool { return c.Table != all[0].Table })
		if n < 0 {
			n = len(all)
		}
		x.tableName, x.chains = all[0].Table, all[:n]
		x.table()
		all = all[n:]
	}
	for _, f := range Families {
		slices.SortStableFunc(rs.Family(f).Chains, func(a, b Chain) int {
			return cmp.Or(cmp.Compare(a.Table, b.Table), x.at[chainName{a.Table, a.Name}]-x.at[chainName{b.Table, b.Name}])
		})
	}
	return x.foreign
}

// nftLowerer makes programs of tables.
type nftLowerer struct {
	rs      Ruleset
	foreign Live
	refused map[[4]string]bool
	// at is each chain's index in its nftables table.
	at map[chainName]int
	// family, tableName and chains are of the table under way.
	family, tableName string
	chains            []*LiveChain
	index             map[string]int // of chains, by name
}

type chainName struct {
	table Table
	name  string
}

func (x *nftLowerer) refuse(r LiveRule, why string) {
	r.Rules, r.Foreign = nil, why
	key := [4]string{r.Table, r.Chain, r.Text, why}
	if !x.refused[key] { // a chain may be reached from several base chains
		x.refused[key], x.foreign = true, append(x.foreign, r)
	}
}

// refuseChain refuses a chain as a whole.
func (x *nftLowerer) refuseChain(c *LiveChain, text, why string) {
	x.refuse(LiveRule{Backend: BackendNftables, Table: c.Table, Chain: c.Name, Text: text}, why)
}

func (x *nftLowerer) table() {
	x.family, _, _ = strings.Cut(x.tableName, " ")
	x.index = map[string]int{}
	for i, c := range x.chains {
		x.index[c.Name] = i
	}
	seen := map[chainName]bool{} // a chain may be reached from several base chains
	for _, c := range x.chains {
		hook := c.Rules[0].Hook
		if hook == nil {
			continue
		}
		into, chain, why := hook.place(x.family)
		switch {
		case why == "" && hook.Policy != "accept":
			why = "it drops by its policy"
		case why == "" && slices.ContainsFunc(Families[:], func(f Family) bool { return x.rs.Family(f).Chain(into, chain) != nil }):
			why = "it is not the only one at its hook"
		}
		if why != "" {
			x.refuseChain(c, hook.String(), why)
			continue
		}
		x.add(c, into, chain, seen)
	}
}

// place returns the built-in chain that sees packets when the base chain does, or says why none does. Priorities are those of
// enum nf_ip_hook_priorities in linux/netfilter_ipv4.h: connection tracking is between raw and mangle.
func (h *Hook) place(family string) (t Table, chain, why string) {
	if len(nftFamilies[family]) == 0 {
		return 0, "", "tables of family " + family + " are not known"
	}
	chain = strings.ToUpper(h.Point)
	inspects := h.Point == "input" || h.Point == "forward" || h.Point == "output"
	switch {
	case !chains.IsBuiltin(chain):
		return 0, "", "hook " + h.Point + " is not known"
	case h.Type == "nat":
		return NAT, chain, ""
	case h.Type != "filter" && h.Type != "route":
		return 0, "", "chains of type " + h.Type + " are not known"
	case h.Priority > -400 && h.Priority < -200 && (chain == Prerouting || chain == Output):
		return Raw, chain, ""
	case h.Priority > -200 && h.Priority < -100:
		return Mangle, chain, ""
	case h.Priority > -100 && h.Priority < 100 && inspects:
		return Filter, chain, ""
	}
	return 0, "", fmt.Sprintf("priority %d is that of no table", h.Priority)
}

// nftFamilies are those of a table's packets.
var nftFamilies = map[string][]Family{"ip": {IPv4}, "ip6": {IPv6}, "inet": {IPv4, IPv6}}

// chain is one of the table's; without rules if no rule of it is there.
func (x *nftLowerer) chain(name string) (c *LiveChain, index int) {
	if at, ok := x.index[name]; ok {
		return x.chains[at], at
	}
	return &LiveChain{Table: x.tableName, Name: name}, len(x.chains)
}

// add adds a base chain and those that it leads to, unless they are there.
func (x *nftLowerer) add(base *LiveChain, into Table, as string, seen map[chainName]bool) {
	type reached struct{ chain, as string }
	name := func(chain string) string { return strings.TrimPrefix(chain, into.String()+"/") } // as this module names them
	queue := []reached{{base.Name, as}}
	for len(queue) > 0 {
		c, index := x.chain(queue[0].chain)
		as := queue[0].as
		queue = queue[1:]
		x.at[chainName{into, as}] = index
		made := map[Family][]Rule{}
		for _, r := range c.Rules {
			if len(r.Rules) == 0 {
				x.refuse(r, cmp.Or(r.Foreign, "not understood"))
				continue
			}
			if r.JumpTo != "" && chains.IsBuiltin(name(r.JumpTo)) {
				x.refuse(r, "the chain has the name of a built-in one, and would be taken for it")
				continue
			}
			if in := (chainName{into, r.JumpTo}); r.JumpTo != "" && !seen[in] {
				seen[in] = true
				queue = append(queue, reached{r.JumpTo, name(r.JumpTo)})
			}
			for _, f := range nftFamilies[x.family] {
				if r.Family != 0 && r.Family != f {
					continue
				}
				for _, rule := range r.Rules {
					rule.Target.Chain = name(rule.Target.Chain)
					// Without a listener nftables goes on, so a program drops in the next rule what iptables' target would drop.
					if n := len(made[f]); n > 0 && made[f][n-1].Target.Action == ActionTProxy && rule.Target.Action == ActionDrop {
						same := rule
						if same.Target = made[f][n-1].Target; same.Equal(made[f][n-1]) {
							continue
						}
					}
					made[f] = append(made[f], rule)
				}
			}
		}
		for _, f := range nftFamilies[x.family] {
			p := x.rs.Family(f)
			if p.Chain(into, as) != nil { // another nftables table's
				x.refuseChain(c, "chain "+c.Name, "another table has a chain of the name")
				continue
			}
			p.Chains = append(p.Chains, Chain{Table: into, Name: as, Rules: made[f]})
		}
	}
	if hook := base.Rules[0].Hook; into == Mangle && as == Output && hook.Type != "route" && x.marks(base.Name, map[string]bool{}) {
		x.refuseChain(base, "type "+hook.Type+" hook output", "a mark that it sets changes no route, as one in iptables would")
	}
}

// marks reports whether a chain, or one that it leads to, sets packets' marks.
func (x *nftLowerer) marks(name string, seen map[string]bool) bool {
	if seen[name] {
		return false
	}
	seen[name] = true
	c, _ := x.chain(name)
	return slices.ContainsFunc(c.Rules, func(r LiveRule) bool {
		return r.JumpTo != "" && x.marks(r.JumpTo, seen) || slices.ContainsFunc(r.Rules, func(r Rule) bool {
			return r.Target.Action == ActionSetMark || r.Target.Action == ActionRestoreMark
		})
	})
}
