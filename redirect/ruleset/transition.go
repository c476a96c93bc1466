package ruleset

import (
	"slices"
	"strconv"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// Present reports whether anything of the owner's is in the saved rules.
func (o Ownership) Present(live LiveChains) bool {
	return slices.ContainsFunc(live, func(c LiveChain) bool { return o.OwnsChain(c.Name) || len(o.rules(&c, false)) > 0 })
}

// Transition returns the input for iptables-restore --noflush that turns the live rules into those
// of p, or "" if nothing differs. A nil live is a namespace without rules.
//
// Each table that differs is one commit, which removes the owner's old rules and adds the new ones,
// so that no packet meets a table half written. Rules and chains of others are not named. Tables
// that gain rules come before tables that lose some: a change of interception mode moves the
// capture from one table to another, and must not leave a moment without it.
//
// The program is to be one that iptables can have; of any other the text is that error, as with [FamilyRuleset.String].
func (p *FamilyRuleset) Transition(live LiveChains) string {
	p, err := p.plain()
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	predecessor := p.Owner.predecessor(live)
	var grow, shrink []byte
	for _, table := range Tables {
		e := edit{owner: p.Owner, live: live.of(table), predecessor: predecessor}
		if e.to(p.table(table), p.Family) {
			grow = e.append(grow, table)
		} else {
			shrink = e.append(shrink, table)
		}
	}
	return string(append(grow, shrink...))
}

// Rollback returns the input for iptables-restore --noflush that undoes a change which failed half way: it turns the
// owner's rules in now into those in before. It is "" if they are the same. Nil is a namespace without rules. Rules of
// others are assumed to be in both in the same order, and are not named.
//
// The text holds only words that the parser understood (see [Parse]). Rules in the owner's
// chains that it did not understand are lost; they are returned for people to read.
func (o Ownership) Rollback(before, now LiveChains) (text string, lost []string) {
	var b []byte
	predecessor := o.predecessor(before) || o.predecessor(now)
	for _, table := range Tables {
		e := edit{owner: o, live: now.of(table), predecessor: predecessor}
		lost = append(lost, e.back(before.of(table))...)
		b = e.append(b, table)
	}
	return string(b), lost
}

// edit is the change of one table under way.
type edit struct {
	owner       Ownership
	live        LiveChains
	predecessor bool

	head, body, tail []byte
	changed          bool
}

// to edits the live chains into the wanted ones. It reports whether the owner has at least as many rules as before.
func (e *edit) to(want []Chain, f Family) (gains bool) {
	at := func(name string) int { return slices.IndexFunc(want, func(c Chain) bool { return c.Name == name }) }
	before, after := 0, 0
	for _, c := range e.live {
		if e.owner.OwnsChain(c.Name) {
			before += len(c.Rules)
		}
	}
	e.dropChains(func(name string) bool { return at(name) >= 0 })
	for i := range want {
		c := &want[i]
		after += len(c.Rules)
		if !chains.IsBuiltin(c.Name) {
			e.declare(c.Name)
			e.body = c.append(e.body, f, false)
			live := e.live.named(c.Name)
			same := live != nil && slices.EqualFunc(live.Rules, c.Rules, func(l LiveRule, r Rule) bool { return l.is(r) })
			e.changed = e.changed || !same
		}
	}
	for _, name := range chains.Builtins {
		live, c := e.live.named(name), &Chain{}
		if i := at(name); i >= 0 {
			c = &want[i]
		}
		own := e.owner.rules(live, e.predecessor)
		before += len(own)
		if slices.EqualFunc(own, c.Rules, (*LiveRule).is) {
			continue
		}
		e.deleteRules(own)
		e.place(live, own, c, f)
	}
	return !e.changed || after >= before
}

// place adds rules to a built-in chain: where the owner's first old one was, if rules of others come after it, so that
// these do not come first from now on. Else at the end.
func (e *edit) place(live *LiveChain, old []*LiveRule, c *Chain, f Family) {
	if len(old) == 0 || old[0].Position+len(old)-1 == len(live.Rules) {
		e.body = c.append(e.body, f, false)
		return
	}
	for i := range c.Rules {
		e.body = appendRule(e.body, "-I ", c.Name+" "+strconv.Itoa(old[0].Position+i), c.Rules[i].Text(f))
	}
}

// back edits the owner's live rules into those of before.
func (e *edit) back(before LiveChains) (lost []string) {
	e.dropChains(func(name string) bool { return before.named(name) != nil })
	for i := range before {
		c := &before[i]
		now := e.live.named(c.Name)
		if !e.owner.OwnsChain(c.Name) || now != nil && slices.EqualFunc(c.Rules, now.Rules, func(a, b LiveRule) bool { return a.Text == b.Text }) {
			continue
		}
		e.changed = true
		e.declare(c.Name)
		for _, r := range c.Rules {
			if r.plain {
				e.body = appendRule(e.body, "-A ", c.Name, r.Text)
			} else {
				lost = append(lost, "-A "+c.Name+" "+r.Text)
			}
		}
	}
	for _, name := range chains.Builtins {
		was, is := e.owner.rules(before.named(name), e.predecessor), e.owner.rules(e.live.named(name), e.predecessor)
		if slices.EqualFunc(was, is, func(a, b *LiveRule) bool { return a.Position == b.Position && a.Text == b.Text }) {
			continue
		}
		e.deleteRules(is)
		for _, r := range was {
			e.body = appendRule(e.body, "-I ", name+" "+strconv.Itoa(r.Position), r.Text)
		}
	}
	return lost
}

// dropChains removes the owner's chains that are not wanted. A chain to which a rule of others
// jumps is only emptied: the kernel would refuse its removal, and the whole commit with it.
func (e *edit) dropChains(wanted func(name string) bool) {
	led := e.owner.othersLeadTo(e.live)
	for _, c := range e.live {
		isLed := led[[2]string{c.Table, c.Name}]
		if !e.owner.OwnsChain(c.Name) || wanted(c.Name) || isLed && len(c.Rules) == 0 {
			continue
		}
		e.changed = true
		e.declare(c.Name)
		if !isLed {
			e.tail = append(append(append(e.tail, "-X "...), c.Name...), '\n')
		}
	}
}

// declare makes a chain, or empties it.
func (e *edit) declare(chain string) {
	e.head = append(append(append(e.head, ':'), chain...), " - [0:0]\n"...)
}

func (e *edit) deleteRules(rules []*LiveRule) {
	e.changed = true
	for _, r := range rules {
		e.head = appendRule(e.head, "-D ", r.Chain, r.Text)
	}
}

// append adds the commit of the table to b, if there is anything to change.
func (e *edit) append(b []byte, table Table) []byte {
	if !e.changed {
		return b
	}
	b = append(append(append(b, '*'), table.String()...), '\n')
	for _, part := range [][]byte{e.head, e.body, e.tail} {
		b = append(b, part...)
	}
	return append(b, "COMMIT\n"...)
}

func appendRule(b []byte, command, chain, rule string) []byte {
	b = append(append(append(b, command...), chain...), ' ')
	return append(append(b, rule...), '\n')
}

// othersLeadTo returns the owner's chains, by table and name, to which a rule in a chain of others
// jumps. A plain jump from a built-in chain is the owner's own.
func (o Ownership) othersLeadTo(live LiveChains) map[[2]string]bool {
	var led map[[2]string]bool
	for _, c := range live {
		if o.OwnsChain(c.Name) {
			continue
		}
		for _, r := range c.Rules {
			if o.OwnsChain(r.JumpTo) && !(r.plain && chains.IsBuiltin(c.Name)) {
				if led == nil {
					led = map[[2]string]bool{}
				}
				led[[2]string{c.Table, r.JumpTo}] = true
			}
		}
	}
	return led
}

// is reports whether the live rule is one that our programs write, and means the same as r.
func (l *LiveRule) is(r Rule) bool { return l.plain && l.Rules[0].Equal(r) }
