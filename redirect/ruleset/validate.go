package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/prefixes"
	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// maxFaults bounds the faults that [Ruleset.Validate] names.
const maxFaults = 16

// Validate reports what keeps the ruleset from being a mesh's program, joined; what makes rules of a Redirect returns valid ones. It has to
// have a program, so the zero value is not valid: what takes an owner's rules out is [Ownership.EmptyRuleset]. Each program is of its own
// family and has an owner, whose chains are all that it has besides built-in ones. Rules in these do nothing but jump to the
// owner's, since others could not be told from others'. Chains are in their order and of different names, jumps lead to chains of the
// same table and in no circle, and each match and target is one that the kernel takes there.
func (rs Ruleset) Validate() error {
	if rs.IPv4 == nil && rs.IPv6 == nil {
		return errors.New("the ruleset has a program for neither family: it says nothing, not even that there are to be no rules (Ownership.EmptyRuleset)")
	}
	var v faults
	for _, f := range Families {
		p := rs.Family(f)
		if p == nil {
			continue
		}
		v.where = f.String()
		v.check(p.Family == f, "its program is of %s", p.Family)
		v.check(p.Owner.OwnsChain(p.Owner.Prefix), "its owner has the prefix %.40q, by which its rules could not be told from others'", p.Owner.Prefix)
		v.check(p.Owner.Prefix == rs.Owner().Prefix, "its owner is %.40q, and that of the other family %.40q", p.Owner.Prefix, rs.Owner().Prefix)
		v.program(p)
	}
	elements := 0
	for _, f := range Families {
		elements += rs.Family(f).elements()
	}
	v.where = "both families"
	v.check(elements <= chains.MaxElements, "the rules have %d prefixes and ports in sets, and %d are the most", elements, chains.MaxElements)
	return errors.Join(v.errs...)
}

// elements counts what is in sets, once for each rule that has it.
func (p *FamilyRuleset) elements() (n int) {
	if p == nil {
		return 0
	}
	for i := range p.Chains {
		for j := range p.Chains[i].Rules {
			r := &p.Chains[i].Rules[j]
			for _, m := range [...]PrefixMatch{r.Src, r.Dst} {
				if len(m.More) > 0 {
					n += 1 + len(m.More)
				}
			}
			for _, m := range [...]PortMatch{r.SrcPorts, r.DstPorts} {
				if slots(m.Ranges) > chains.MaxPortSlots {
					n += len(m.Ranges)
				}
			}
		}
	}
	return n
}

type faults struct {
	where string
	errs  []error
}

func (v *faults) check(ok bool, format string, args ...any) {
	if !ok && len(v.errs) < maxFaults {
		v.errs = append(v.errs, fmt.Errorf("ruleset: "+v.where+": "+format, args...))
	}
}

func (v *faults) program(p *FamilyRuleset) {
	type chain struct {
		table Table
		name  string
	}
	at := make(map[chain]int, len(p.Chains))
	for i := range p.Chains {
		c := &p.Chains[i]
		_, twice := at[chain{c.Table, c.Name}]
		at[chain{c.Table, c.Name}] = i
		v.check(int(c.Table) < len(tableNames), "chain %.40q is in %s", c.Name, c.Table)
		v.check(!twice, "chain %s/%.40s is there twice", c.Table, c.Name)
		v.check(chains.IsBuiltin(c.Name) || p.Owner.OwnsChain(c.Name), "chain %s/%.40q is neither built in nor the owner's", c.Table, c.Name)
		v.check(i == 0 || p.Chains[i-1].Table < c.Table || p.Chains[i-1].Table == c.Table && (!chains.IsBuiltin(c.Name) || chains.IsBuiltin(p.Chains[i-1].Name)),
			"chain %s/%.40s is not in its place: tables have an order, and in a table built-in chains are first", c.Table, c.Name)
	}
	leads := make([][]int, len(p.Chains))
	for i := range p.Chains {
		c := &p.Chains[i]
		for n := range c.Rules {
			r := &c.Rules[n]
			jumps, fault := r.Target.Action == ActionJump, r.fault(p.Family, c.Table)
			switch to, found := at[chain{c.Table, r.Target.Chain}]; {
			case jumps && (!found || chains.IsBuiltin(r.Target.Chain)):
				fault = fmt.Sprintf("it jumps to %.40q, which is no chain of the program's in that table", r.Target.Chain)
			case jumps:
				leads[i] = append(leads[i], to)
			case chains.IsBuiltin(c.Name):
				fault = "it does not jump, and in a built-in chain could not be told from others'"
			}
			if fault != "" {
				v.check(false, "rule %d of %s/%.40s: %s", n+1, c.Table, c.Name, fault)
			}
		}
	}
	v.check(!circular(leads), "chains jump in a circle")
}

// circular reports whether a chain leads back to itself.
func circular(leads [][]int) bool {
	left, again := len(leads), true
	done := make([]bool, len(leads))
	for again { // each time those go that lead nowhere else
		again = false
		for i, to := range leads {
			if !done[i] && !slices.ContainsFunc(to, func(next int) bool { return !done[next] }) {
				done[i], again = true, true
				left--
			}
		}
	}
	return left > 0
}

// fault names the part of the rule that the kernel, or a program of iptables, would not take in a table, or take for another rule.
func (r *Rule) fault(f Family, t Table) string {
	for _, m := range [...]PrefixMatch{r.Src, r.Dst} {
		if !m.IsZero() && (FamilyOf(m.Prefix.Addr()) != f || m.Prefix.Addr().Zone() != "") {
			return fmt.Sprintf("address %s is not %s", m.Prefix, f)
		}
		if len(m.More) == 0 {
			continue
		}
		if at := slices.IndexFunc(m.More, func(p netip.Prefix) bool { return !p.IsValid() || FamilyOf(p.Addr()) != f || p.Addr().Zone() != "" }); at >= 0 {
			return fmt.Sprintf("address %s is not %s", m.More[at], f)
		}
		if m.Not || m.IsZero() || !prefixes.Merged(m.list()) {
			return "its prefixes are not in order, one lies in another, or they are negated"
		}
	}
	for _, m := range [...]InterfaceMatch{r.In, r.Out} {
		if m.IsZero() {
			continue
		}
		if prefix, _ := m.Wildcard(); prefix == "" || len(m.Name) > 15 || strings.ContainsFunc(prefix, chains.UnsafeRune) || prefix[0] == '-' {
			return fmt.Sprintf("%.40q is not the name of an interface", m.Name)
		}
	}
	for _, m := range [...]PortMatch{r.SrcPorts, r.DstPorts} {
		if !m.IsZero() && r.Proto != TCP && r.Proto != UDP {
			return fmt.Sprintf("it matches ports of protocol %s", r.Proto)
		}
		if m.Not && slots(m.Ranges) > chains.MaxPortSlots {
			return fmt.Sprintf("it negates more ports than the %d that fit one match of iptables", chains.MaxPortSlots)
		}
		for _, ports := range m.Ranges {
			if ports.First > ports.Last {
				return fmt.Sprintf("%d:%d is no range of ports", ports.First, ports.Last)
			}
		}
	}
	for _, o := range r.Owner {
		if !o.IsZero() && (o.Kind > OwnerGID || o.First > o.Last) {
			return fmt.Sprintf("%d-%d is no range of owners", o.First, o.Last)
		}
	}
	if r.SrcType > AddrTypeNotLocal || r.DstType > AddrTypeNotLocal || r.States >= 1<<len(stateNames) {
		return "it matches an address type or a state that there is not"
	}
	return r.Target.fault(f, t)
}

func (t Target) fault(f Family, table Table) string {
	if int(t.Action) >= len(actionNames) {
		return "its target is " + t.Action.String() + ", which there is not"
	}
	in := Tables[:]
	switch t.Action {
	case ActionRedirect, ActionDNAT:
		in = []Table{NAT}
	case ActionTProxy:
		in = []Table{Mangle}
	case ActionZone:
		in = []Table{Raw}
	case ActionDrop:
		in = []Table{Raw, Mangle, Filter}
	case ActionLog:
		if _, err := getPrefix(Target{}, t.Prefix); err != nil || t.Level > 7 {
			return fmt.Sprintf("%.40q at level %d is not what a log line can begin with: at most %d printable characters, and 0 to 7", t.Prefix, t.Level, maxLogPrefix)
		}
	case ActionNone, ActionAccept, ActionReturn, ActionJump, ActionSetMark, ActionSaveMark, ActionRestoreMark, ActionSetConnMark:
	}
	switch {
	case !slices.Contains(in, table):
		return "target " + t.Action.String() + " is not for table " + table.String()
	case (t.Action == ActionRedirect || t.Action == ActionTProxy) && t.Port == 0:
		return "target " + t.Action.String() + " has no port"
	case t.Action == ActionDNAT && !canBeDestination(t.To.Addr(), f):
		return fmt.Sprintf("%s is no %s address to rewrite a destination to", t.To, f)
	}
	return ""
}

func canBeDestination(a netip.Addr, f Family) bool {
	return a.IsValid() && FamilyOf(a) == f && a.Zone() == "" && !a.IsUnspecified()
}
