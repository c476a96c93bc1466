package ruleset

import (
	"slices"
	"strconv"
)

// Back returns the text that makes the owner's rules in now what they were in
// before, as iptables-restore --noflush takes it; empty when they are. It is for
// after a change that failed half way: rules of others are taken to stand in both in
// the same order, and are not named. Nothing of the text that was read is in it
// but words that were understood (see [SavedRule]). Rules in the owner's chains that were
// not are lost: they are returned, for people. Nil is a namespace without rules.
func (o Owner) Back(before, now *Saved) (text string, lost []string) {
	var b []byte
	predecessor := o.predecessor(before) || o.predecessor(now)
	for _, table := range Tables {
		t := backTable{owner: o, before: before.chains(table), now: now.chains(table), predecessor: predecessor}
		b = append(b, t.text(table)...)
		lost = append(lost, t.lost...)
	}
	return string(b), lost
}

type backTable struct {
	owner       Owner
	before, now []SavedChain
	predecessor bool

	head, body, tail []byte
	changed          bool
	lost             []string
}

func (t *backTable) text(table Table) (text []byte) {
	led := t.owner.othersLeadTo(t.now)
	for i := range t.now {
		if c := &t.now[i]; t.owner.OwnsChain(c.Name) && chainOf(t.before, c.Name) == nil {
			t.changed = true
			t.declare(c.Name)
			if !led[c.Name] {
				t.tail = append(append(append(t.tail, "-X "...), c.Name...), '\n')
			}
		}
	}
	for i := range t.before {
		if c := &t.before[i]; t.owner.OwnsChain(c.Name) {
			t.chain(c, chainOf(t.now, c.Name))
		}
	}
	for _, name := range builtins {
		t.builtin(name)
	}
	if !t.changed {
		return nil
	}
	return commit(table, t.head, t.body, t.tail)
}

func (t *backTable) declare(name string) { t.head = appendDeclaration(t.head, name) }

// chain fills one of the owner's chains, which a declaration makes and empties.
func (t *backTable) chain(before, now *SavedChain) {
	if now != nil && slices.EqualFunc(before.Rules, now.Rules, sameText) {
		return
	}
	t.changed = true
	t.declare(before.Name)
	for _, r := range before.Rules {
		if r.Known {
			t.body = appendRule(t.body, "-A ", before.Name, r.Text)
		} else {
			t.lost = append(t.lost, "-A "+before.Name+" "+r.Text)
		}
	}
}

// builtin puts the owner's rules in a built-in chain where they were among others'.
func (t *backTable) builtin(name string) {
	before, now := chainOf(t.before, name), chainOf(t.now, name)
	was, is := t.owner.builtinRules(before, t.predecessor), t.owner.builtinRules(now, t.predecessor)
	if slices.EqualFunc(was, is, func(i, j int) bool { return i == j && sameText(before.Rules[i], now.Rules[j]) }) {
		return
	}
	t.changed = true
	for _, i := range is {
		t.head = appendRule(t.head, "-D ", name, now.Rules[i].Text)
	}
	for _, i := range was {
		t.body = appendRule(t.body, "-I ", name+" "+strconv.Itoa(i+1), before.Rules[i].Text)
	}
}

func sameText(a, b SavedRule) bool { return a.Text == b.Text }

// chains returns the chains of a table.
func (s *Saved) chains(table Table) []SavedChain {
	if s != nil {
		for i := range s.Tables {
			if s.Tables[i].Name == table.String() {
				return s.Tables[i].Chains
			}
		}
	}
	return nil
}
