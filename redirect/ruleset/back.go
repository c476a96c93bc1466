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
		if c := &t.now[i]; t.owner.OwnsChain(c.Name) && find(t.before, c.Name) == nil {
			t.changed = true
			t.declare(c.Name)
			if !led[c.Name] {
				t.tail = append(append(append(t.tail, "-X "...), c.Name...), '\n')
			}
		}
	}
	for i := range t.before {
		if c := &t.before[i]; t.owner.OwnsChain(c.Name) {
			t.chain(c, find(t.now, c.Name))
		}
	}
	for _, name := range [...]string{Prerouting, Input, Forward, Output, Postrouting} {
		t.builtin(name)
	}
	if !t.changed {
		return nil
	}
	text = append(append(append(text, '*'), table.String()...), '\n')
	text = append(append(append(text, t.head...), t.body...), t.tail...)
	return append(text, "COMMIT\n"...)
}

func (t *backTable) declare(name string) {
	t.head = append(append(append(t.head, ':'), name...), " - [0:0]\n"...)
}

// chain fills one of the owner's chains, which a declaration makes and empties.
func (t *backTable) chain(before, now *SavedChain) {
	if now != nil && slices.EqualFunc(before.Rules, now.Rules, sameText) {
		return
	}
	t.changed = true
	t.declare(before.Name)
	for _, r := range before.Rules {
		if r.Known {
			t.body = append(append(append(append(append(t.body, "-A "...), before.Name...), ' '), r.Text...), '\n')
		} else {
			t.lost = append(t.lost, "-A "+before.Name+" "+r.Text)
		}
	}
}

// builtin puts the owner's rules in a built-in chain where they were among others'.
func (t *backTable) builtin(name string) {
	before, now := find(t.before, name), find(t.now, name)
	was, is := t.owner.builtinRules(before, t.predecessor), t.owner.builtinRules(now, t.predecessor)
	if slices.EqualFunc(was, is, func(i, j int) bool { return i == j && sameText(before.Rules[i], now.Rules[j]) }) {
		return
	}
	t.changed = true
	for _, i := range is {
		t.head = append(append(append(append(append(t.head, "-D "...), name...), ' '), now.Rules[i].Text...), '\n')
	}
	for _, i := range was {
		t.body = append(append(append(t.body, "-I "...), name...), ' ')
		t.body = strconv.AppendInt(t.body, int64(i+1), 10)
		t.body = append(append(append(t.body, ' '), before.Rules[i].Text...), '\n')
	}
}

func sameText(a, b SavedRule) bool { return a.Text == b.Text }

func find(chains []SavedChain, name string) *SavedChain {
	if i := slices.IndexFunc(chains, func(c SavedChain) bool { return c.Name == name }); i >= 0 {
		return &chains[i]
	}
	return nil
}

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
