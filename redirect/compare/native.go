package compare

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Rules parses what a pod's rules were saved as: the output of `nft list ruleset`, by [Native], or of iptables-save and
// ip6tables-save, by [Saved]. Both in one text is an error: which of them sees a packet first is not in it.
func Rules(text string, beside ruleset.Ruleset) (ruleset.Ruleset, error) {
	iptables, native := false, false
	for line := range strings.Lines(text) {
		native = native || strings.HasPrefix(line, "table ")
		iptables = iptables || strings.HasPrefix(line, "*")
	}
	switch {
	case native && iptables:
		return ruleset.Ruleset{}, errors.New("it has rules of iptables and of nftables, which are not compared together")
	case native:
		return Native(text, beside)
	}
	return Saved(text, beside)
}

// Native parses the output of `nft list ruleset`: rules that a program has written to nftables directly. A base chain
// becomes the built-in chain whose place at the hook it has, and a rule with a set as many rules as it takes.
// Nftables has no policy routing and no addresses of lo, so these are copied from beside, as by [Saved].
//
// After a rule that hands packets to a transparent proxy nftables goes on if the proxy does not listen, where iptables
// drops the packet. The model takes it that the proxy listens.
//
// The error is a [ForeignError], which lists rules outside the model, also those that iptables-nft wrote: read these by
// iptables-save. One that becomes more than 4096 rules, and what comes after 65536 in all, is outside too. Else the error names a
// line that is not such output.
func Native(text string, beside ruleset.Ruleset) (ruleset.Ruleset, error) {
	p := nativeParser{words: lex(text)}
	if err := p.ruleset(); err != nil {
		return ruleset.Ruleset{}, fmt.Errorf("rules of nftables, line %d: %w", p.line, err)
	}
	l := nativeLowerer{foreign: &ForeignError{}, at: map[chainName]int{}, left: maxNatives}
	for _, f := range ruleset.Families {
		l.programs = append(l.programs, &ruleset.Program{Family: f})
	}
	for i := range p.tables {
		l.table(&p.tables[i])
	}
	if len(l.foreign.Rules) > 0 {
		return ruleset.Ruleset{}, l.foreign
	}
	var rs ruleset.Ruleset
	for _, program := range l.programs {
		if o := beside.Program(program.Family); o != nil {
			program.Routing, program.LoopbackAddrs = o.Routing, o.LoopbackAddrs
		}
		slices.SortStableFunc(program.Chains, func(a, b ruleset.Chain) int {
			return cmp.Or(cmp.Compare(a.Table, b.Table), l.at[chainName{a.Table, a.Name}]-l.at[chainName{b.Table, b.Name}])
		})
		rs.Set(program)
	}
	return rs, nil
}

type nativeTable struct {
	family, name string
	dormant      bool
	sets         map[string][]string
	chains       []nativeChain
}

type nativeChain struct {
	name string
	// typ, hook and priority are a base chain's.
	typ, hook, policy string
	priority          int
	rules             [][]word
}

// nativeLowerer makes programs of tables.
type nativeLowerer struct {
	programs []*ruleset.Program
	foreign  *ForeignError
	// at is each chain's index in its nftables table.
	at map[chainName]int
	// left counts the rules that may still be made.
	left int
}

type chainName struct {
	table ruleset.Table
	name  string
}

func (l *nativeLowerer) refuse(t *nativeTable, chain, rule, reason string) {
	r := ForeignRule{Table: t.family + " " + t.name, Chain: chain, Rule: rule, Reason: reason}
	if !slices.Contains(l.foreign.Rules, r) { // a chain may be reached from several tables
		l.foreign.Rules = append(l.foreign.Rules, r)
	}
}

func (l *nativeLowerer) table(t *nativeTable) {
	if t.dormant {
		return
	}
	seen := map[chainName]bool{} // a chain may be reached from several base chains
	for i := range t.chains {
		c := &t.chains[i]
		if c.hook == "" || l.left < 0 || len(c.rules) == 0 && c.policy != "drop" {
			continue
		}
		into, chain, why := c.place(t.family)
		switch {
		case why == "" && c.policy == "drop":
			why = "it drops by its policy"
		case why == "" && slices.ContainsFunc(l.programs, func(p *ruleset.Program) bool { return p.Chain(into, chain) != nil }):
			why = "it is not the only one at its hook"
		}
		if why != "" {
			l.refuse(t, c.name, "type "+c.typ+" hook "+c.hook+" priority "+strconv.Itoa(c.priority), why)
			continue
		}
		l.chains(t, c, into, chain, seen)
	}
}

// place returns the built-in chain that sees packets when the base chain does, or says why none does. Priorities are those of
// enum nf_ip_hook_priorities in linux/netfilter_ipv4.h: connection tracking is between raw and mangle.
func (c *nativeChain) place(family string) (t ruleset.Table, chain, why string) {
	if len(families[family]) == 0 {
		return 0, "", "tables of family " + family + " are not known"
	}
	chain = strings.ToUpper(c.hook)
	inspects := c.hook == "input" || c.hook == "forward" || c.hook == "output"
	switch {
	case !chains.IsBuiltin(chain):
		return 0, "", "hook " + c.hook + " is not known"
	case c.typ == "nat":
		return ruleset.NAT, chain, ""
	case c.typ != "filter" && c.typ != "route":
		return 0, "", "chains of type " + c.typ + " are not known"
	case c.priority > -400 && c.priority < -200 && (chain == ruleset.Prerouting || chain == ruleset.Output):
		return ruleset.Raw, chain, ""
	case c.priority > -200 && c.priority < -100:
		return ruleset.Mangle, chain, ""
	case c.priority > -100 && c.priority < 100 && inspects:
		return ruleset.Filter, chain, ""
	}
	return 0, "", fmt.Sprintf("priority %d is that of no table", c.priority)
}

// families are those of a table's packets.
var families = map[string][]ruleset.Family{"ip": {ruleset.IPv4}, "ip6": {ruleset.IPv6}, "inet": {ruleset.IPv4, ruleset.IPv6}}

// chains adds a base chain and those that it leads to, unless they are there.
func (l *nativeLowerer) chains(t *nativeTable, base *nativeChain, into ruleset.Table, as string, seen map[chainName]bool) {
	type reached struct {
		chain *nativeChain
		as    string
	}
	name := func(chain string) string { return strings.TrimPrefix(chain, into.String()+"/") } // as this module names them
	queue := []reached{{base, as}}
	for len(queue) > 0 {
		c := queue[0]
		queue = queue[1:]
		l.at[chainName{into, c.as}] = slices.IndexFunc(t.chains, func(x nativeChain) bool { return x.name == c.chain.name })
		made := map[ruleset.Family][]ruleset.Rule{}
		for _, words := range c.chain.rules {
			rules, err := t.rule(words)
			if err != nil {
				l.refuse(t, c.chain.name, text(words), err.Error())
				continue
			}
			if l.left -= len(rules); l.left < 0 {
				l.refuse(t, c.chain.name, text(words), fmt.Sprintf("with it, the rules are more than %d without their sets", maxNatives))
				return
			}
			for _, r := range rules {
				if to := &r.rule.Target; to.Action == ruleset.Jump {
					at := slices.IndexFunc(t.chains, func(c nativeChain) bool { return c.name == to.Chain })
					if at < 0 {
						l.refuse(t, c.chain.name, text(words), "there is no such chain")
						continue
					}
					if chains.IsBuiltin(name(to.Chain)) {
						l.refuse(t, c.chain.name, text(words), "the chain has the name of a built-in one, and would be taken for it")
						continue
					}
					if in := (chainName{into, to.Chain}); !seen[in] {
						seen[in] = true
						queue = append(queue, reached{&t.chains[at], name(to.Chain)})
					}
					to.Chain = name(to.Chain)
				}
				of := made[r.family]
				// Without a listener nftables goes on, so a program drops in the next rule what iptables' target would drop.
				if n := len(of); n > 0 && of[n-1].Target.Action == ruleset.TProxy && r.rule.Target.Action == ruleset.Drop {
					same := r.rule
					if same.Target = of[n-1].Target; same.Equal(of[n-1]) {
						continue
					}
				}
				made[r.family] = append(of, r.rule)
			}
		}
		for _, p := range l.programs {
			if slices.Contains(families[t.family], p.Family) {
				chain := ruleset.Chain{Table: into, Name: c.as, Rules: made[p.Family]}
				if old := p.Chain(into, c.as); old != nil { // another nftables table's
					l.refuse(t, c.chain.name, "chain "+c.chain.name, "another table has a chain of the name")
					continue
				}
				p.Chains = append(p.Chains, chain)
			}
		}
	}
	if into == ruleset.Mangle && as == ruleset.Output && base.typ != "route" && t.marks(base.name, map[string]bool{}) {
		l.refuse(t, base.name, "type "+base.typ+" hook output", "a mark that it sets changes no route, as one in iptables would")
	}
}

// marks reports whether a chain, or one that it leads to, sets packets' marks.
func (t *nativeTable) marks(chain string, seen map[string]bool) bool {
	at := slices.IndexFunc(t.chains, func(c nativeChain) bool { return c.name == chain })
	if at < 0 || seen[chain] {
		return false
	}
	seen[chain] = true
	for _, words := range t.chains[at].rules {
		rules, _ := t.rule(words) // one that is not understood is refused
		for _, r := range rules {
			switch to := r.rule.Target; to.Action {
			case ruleset.SetMark, ruleset.RestoreMark:
				return true
			case ruleset.Jump:
				if t.marks(to.Chain, seen) {
					return true
				}
			}
		}
	}
	return false
}
