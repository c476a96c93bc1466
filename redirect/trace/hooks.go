package trace

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Hooks are the base chains of a network namespace, whoever made them, in the order in which packets meet them. The zero Hooks has none.
type Hooks struct {
	// Beside has policy routing and addresses of lo, which are not among the chains. Its rules do not count.
	Beside ruleset.Ruleset
	bases  []*base
}

// base is a base chain of one family, and what it leads to.
type base struct {
	program  *ruleset.FamilyRuleset
	name     string
	table    ruleset.Table // whose place it has at the hook
	hook     string
	priority int32
	drops    bool // by policy
	where    string
	// live are the rules' originals; nil: the program is none that was found.
	live map[*ruleset.Rule]*liveRule
}

// liveRule is a rule that was found. One that is not understood does what is known of it if it matches.
type liveRule struct {
	*ruleset.LiveRule
	understood bool
}

func (r *liveRule) where() string { return fmt.Sprintf("%s/%s:%d", r.Table, r.Chain, r.Position) }

func (r *liveRule) unmodelled(t ruleset.Table, reason string) error {
	return &UnmodelledError{Table: t, Chain: r.Chain, Position: r.Position, Rule: r.Text, Reason: reason, where: r.where()}
}

// priorities of iptables' tables at OUTPUT and PREROUTING (enum nf_ip_hook_priorities in linux/netfilter_ipv4.h).
var priorities = map[ruleset.Table]int32{ruleset.Raw: -300, ruleset.Mangle: -150, ruleset.NAT: -100, ruleset.Filter: 0}

// Add adds all chains of one program's: those that iptables-save prints of a family, or those of nftables. Chains at other hooks than
// PREROUTING and OUTPUT count where rules of ours are in them, and else are left out; so are those of other families than IPv4 and IPv6.
func (h *Hooks) Add(chains ruleset.LiveChains) {
	type as struct {
		in, f ruleset.Family
		table string
		place ruleset.Table
	}
	filled := map[as]*base{}
	for i := range chains {
		c := &chains[i]
		for _, f := range ruleset.Families {
			b := place(c, f)
			if b == nil {
				continue
			}
			key := as{c.Family, f, c.Table, b.table}
			if filled[key] == nil {
				b.fill(chains, c, f)
				filled[key] = b
			}
			b.program, b.live = filled[key].program, filled[key].live
			h.bases = append(h.bases, b)
		}
	}
	h.sort()
}

// AddRules adds rules that are known to be there as they are wanted, in chains of their own as the nftables backend makes them.
func (h *Hooks) AddRules(rs ruleset.Ruleset) {
	for _, f := range ruleset.Families {
		if rs.Family(f) == nil {
			continue
		}
		for _, c := range rs.Family(f).Chains {
			if tablesOf[c.Name] != nil {
				where := "chain " + c.Name + " of table " + c.Table.String() + " of the mesh"
				h.bases = append(h.bases, &base{program: rs.Family(f), name: c.Name, table: c.Table, hook: c.Name, priority: priorities[c.Table], where: where})
			}
		}
	}
	h.sort()
}

func (h *Hooks) sort() {
	slices.SortStableFunc(h.bases, func(a, b *base) int { return cmp.Compare(a.priority, b.priority) })
}

// Others returns what is known of the rules that are not ours, in chains that packets meet before the first of ours or beside them: at most so
// many, and whether there are more.
func (h *Hooks) Others(most int) (others []ruleset.Rule, more bool) {
	type at struct {
		*ruleset.FamilyRuleset
		name string
	}
	seen := map[at]bool{}
	for _, b := range h.bases {
		queue := []string{b.name}
		for len(queue) > 0 {
			c := b.program.Chain(b.table, queue[0])
			base := queue[0] == b.name
			queue = queue[1:]
			if c == nil || b.live == nil || seen[at{b.program, c.Name}] {
				continue
			}
			seen[at{b.program, c.Name}] = true
			for i := range c.Rules {
				r := &c.Rules[i]
				if b.live[r].Ours {
					if base && r.Target.Action == ruleset.ActionJump {
						break
					}
					continue
				}
				if len(others) == most {
					return others, true
				}
				others = append(others, *r)
				if r.Target.Action == ruleset.ActionJump {
					queue = append(queue, r.Target.Chain)
				}
			}
		}
	}
	return others, false
}

// place returns the base chain for the packets of a family; nil if they do not meet it.
func place(c *ruleset.LiveChain, f ruleset.Family) *base {
	b := &base{name: c.Name, drops: c.Policy == "drop"}
	if c.Hook == nil {
		table, err := ruleset.ParseTable(c.Table)
		if c.Table == "security" {
			table, err = ruleset.Filter, nil
		}
		if err != nil || c.Family != f {
			return nil
		}
		b.table, b.hook, b.priority = table, c.Name, priorities[table]
		b.where = "chain " + c.Name + " of table " + c.Table
	} else {
		family, _, _ := strings.Cut(c.Table, " ")
		if family != "inet" && family != map[ruleset.Family]string{ruleset.IPv4: "ip", ruleset.IPv6: "ip6"}[f] {
			return nil
		}
		b.hook, b.priority, b.table = strings.ToUpper(c.Hook.Point), c.Hook.Priority, ruleset.Filter
		switch { // connection tracking is at -200
		case c.Hook.Type == "nat":
			b.table = ruleset.NAT
		case b.priority < -200:
			b.table = ruleset.Raw
		case b.priority < -100:
			b.table = ruleset.Mangle
		}
		b.where = "chain " + c.Name + " of table " + c.Table
	}
	if b.hook != ruleset.Output && b.hook != ruleset.Prerouting && !slices.ContainsFunc(c.Rules, func(r ruleset.LiveRule) bool { return r.Ours }) {
		return nil
	}
	return b
}

// fill reads the chains of the table that a base chain is in.
func (b *base) fill(chains ruleset.LiveChains, chain *ruleset.LiveChain, f ruleset.Family) {
	b.program, b.live = &ruleset.FamilyRuleset{Family: f}, map[*ruleset.Rule]*liveRule{}
	for i := range chains {
		c := &chains[i]
		if c.Family != chain.Family || c.Table != chain.Table {
			continue
		}
		to := ruleset.Chain{Table: b.table, Name: c.Name}
		var from []*liveRule
		for i := range c.Rules {
			r := &c.Rules[i]
			if r.Family != 0 && r.Family != f {
				continue
			}
			rules, understood := r.Rules, len(r.Rules) > 0
			if !understood {
				rules = []ruleset.Rule{r.Known}
			}
			for _, rule := range rules {
				if !r.Ours {
					rule.Comment = fmt.Sprintf("rule %s/%s:%d (%s)", r.Table, r.Chain, r.Position, r.Text)
				}
				to.Rules, from = append(to.Rules, rule), append(from, &liveRule{r, understood || r.Matches})
			}
		}
		for i := range to.Rules {
			b.live[&to.Rules[i]] = from[i]
		}
		b.program.Chains = append(b.program.Chains, to)
	}
}

// empty reports whether the base chain does nothing.
func (b *base) empty() bool { return !b.drops && len(b.program.Chain(b.table, b.name).Rules) == 0 }

// basesOf lists the base chains of a table's place at a hook.
func (w *walker) basesOf(t ruleset.Table, hook string) (all []*base, err error) {
	if w.hooks == nil {
		w.plain = base{program: w.program, name: hook}
		return append(w.one[:0], &w.plain), nil
	}
	for _, b := range w.hooks {
		if b.table == t && b.hook == hook && b.program.Family == w.program.Family && !b.empty() {
			all = append(all, b)
		}
	}
	for i := 0; i < len(all); {
		n := i + 1
		for n < len(all) && all[n].priority == all[i].priority {
			n++
		}
		if n > i+1 { // the kernel does not tell which of them was made later, and so comes first
			e := &UnmodelledError{Table: t, Chain: all[i].name, Rule: "priority", where: all[i].where, Reason: "it is not known whether packets meet it before or after " + all[n-1].where}
			reversed, err := w.suppose(e)
			if err != nil {
				return nil, err
			}
			if reversed {
				slices.Reverse(all[i:n])
			}
		}
		i = n
	}
	return all, nil
}

// openError names the unknown that a trace depends on.
type openError struct{ *UnmodelledError }

// suppose answers what is not known.
func (w *walker) suppose(e error) (yes bool, err error) {
	if w.asked < len(w.supposed) {
		w.asked++
		return w.supposed[w.asked-1], nil
	}
	var unmodelled *UnmodelledError
	errors.As(e, &unmodelled)
	return false, &openError{unmodelled}
}

// maxSupposed bounds what may be unknown on one packet's way.
const maxSupposed = 7

// Trace walks a packet through the base chains. Where it is not known whether a rule matches, or which of two comes first, each case is
// tried. The error is an [UnmodelledError] if they do not come to the same, or says why the packet is impossible.
func (h *Hooks) Trace(p Packet) (Result, error) {
	p, err := p.clean()
	if err != nil {
		return Result{}, err
	}
	return h.trace(p, nil)
}

func (h *Hooks) trace(p Packet, supposed []bool) (Result, error) {
	family := ruleset.FamilyOf(p.Dst.Addr())
	frame := &ruleset.FamilyRuleset{Family: family}
	if beside := h.Beside.Family(family); beside != nil {
		frame.Routing, frame.LoopbackAddrs = beside.Routing, beside.LoopbackAddrs
	}
	w := newWalker(frame, p)
	w.hooks, w.supposed = append([]*base{}, h.bases...), supposed
	err := w.alone()
	var open *openError
	switch {
	case err == nil:
		return w.result(), nil
	case !errors.As(err, &open):
		return Result{}, err
	case len(supposed) == maxSupposed:
		return Result{}, open.UnmodelledError
	}
	no, err := h.trace(p, append(slices.Clip(supposed), false))
	if err != nil {
		return Result{}, err
	}
	yes, err := h.trace(p, append(slices.Clip(supposed), true))
	if err != nil {
		return Result{}, err
	}
	if !yes.Same(no) {
		return Result{}, open.UnmodelledError
	}
	return no, nil
}

// Same reports whether both results are the same fate.
func (r Result) Same(o Result) bool {
	return r.Verdict == o.Verdict && r.ToPort == o.ToPort && r.ToAddr == o.ToAddr
}
