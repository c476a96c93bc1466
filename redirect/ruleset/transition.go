package ruleset

import (
	"slices"
	"strings"
)

// Present reports whether anything of the owner's is in the saved rules.
func (o Owner) Present(live *Saved) bool {
	if live == nil {
		return false
	}
	for _, t := range live.Tables {
		for _, c := range t.Chains {
			if o.OwnsChain(c.Name) || IsBuiltin(c.Name) && len(o.builtinRules(&c, false)) > 0 {
				return true
			}
		}
	}
	return false
}

// Transition returns the text that turns the live rules into those of p, as
// iptables-restore --noflush takes it: one commit for each table that differs,
// in which old rules of the same owner go and the new ones come, so that no
// packet meets a table half written. Rules and chains of others are not named
// in it. It is empty when nothing differs. A nil live is a namespace without
// rules.
//
// Tables that gain rules are committed before tables that lose some, so that a
// change of interception mode, which moves the capture from one table to
// another, leaves no moment without it.
func (p *Program) Transition(live *Saved) string {
	t := transition{program: p, live: live, predecessor: p.Owner.predecessor(live)}
	var grow, shrink []byte
	for _, table := range Tables {
		text, gains := t.table(table)
		if gains {
			grow = append(grow, text...)
		} else {
			shrink = append(shrink, text...)
		}
	}
	return string(append(grow, shrink...))
}

// Cleanup returns the text that removes exactly this program from a namespace
// that holds it. To remove whatever of the owner's is there, use
// Transition of a Program without chains.
func (p *Program) Cleanup() string {
	live, err := Parse(p.Family, p.String())
	if err != nil {
		// Our own text always parses: TestRenderParseRender holds it to that.
		panic("ruleset: own text does not parse: " + err.Error())
	}
	return p.Empty().Transition(live)
}

// Empty returns the program of the same family and owner that has no rules.
func (p *Program) Empty() *Program { return &Program{Family: p.Family, Owner: p.Owner} }

type transition struct {
	program     *Program
	live        *Saved
	predecessor bool
}

// table returns the commit of one table, and whether it has as many rules
// after as before, or more.
func (t *transition) table(table Table) (text []byte, gains bool) {
	want := t.program.table(table)
	owner := t.program.Owner
	var head, tail []byte
	before, after := 0, 0
	changed := false

	// Chains of ours that are no longer wanted. Declaring a chain empties it.
	led := owner.othersLeadTo(t.live.chains(table))
	for _, c := range t.live.chains(table) {
		if !owner.OwnsChain(c.Name) {
			continue
		}
		before += len(c.Rules)
		if slices.IndexFunc(want, func(w Chain) bool { return w.Name == c.Name }) >= 0 {
			continue
		}
		if led[c.Name] {
			// A rule of others jumps here: a chain that is left empty does
			// nothing, one that is taken away would make the kernel refuse it all.
			if len(c.Rules) > 0 {
				head = appendDeclaration(head, c.Name)
				changed = true
			}
			continue
		}
		head = appendDeclaration(head, c.Name)
		tail = append(append(append(tail, "-X "...), c.Name...), '\n')
		changed = true
	}
	var body []byte
	for i := range want {
		c := &want[i]
		after += len(c.Rules)
		if IsBuiltin(c.Name) {
			continue
		}
		head = appendDeclaration(head, c.Name)
		body = c.append(body, t.program.Family, false)
		if !c.equalLive(t.live.chain(table, c.Name)) {
			changed = true
		}
	}
	for _, name := range builtins {
		lc := t.live.chain(table, name)
		own := owner.builtinRules(lc, t.predecessor)
		before += len(own)
		var wanted Chain
		if i := slices.IndexFunc(want, func(w Chain) bool { return w.Name == name }); i >= 0 {
			wanted = want[i]
		}
		if sameRules(lc, own, wanted.Rules) {
			continue
		}
		changed = true
		for _, i := range own {
			head = appendRule(head, "-D ", name, lc.Rules[i].Text)
		}
		body = wanted.append(body, t.program.Family, false)
	}
	if !changed {
		return nil, true
	}
	return commit(table, head, body, tail), after >= before
}

// appendDeclaration makes a chain, or empties it.
func appendDeclaration(b []byte, chain string) []byte {
	return append(append(append(b, ':'), chain...), " - [0:0]\n"...)
}

func appendRule(b []byte, command, chain, rule string) []byte {
	b = append(append(append(b, command...), chain...), ' ')
	return append(append(b, rule...), '\n')
}

// commit puts a table's parts together.
func commit(table Table, parts ...[]byte) []byte {
	text := append(append(append([]byte(nil), '*'), table.String()...), '\n')
	for _, p := range parts {
		text = append(text, p...)
	}
	return append(text, "COMMIT\n"...)
}

// othersLeadTo returns the owner's chains to which a rule in a chain of others
// jumps. (What of ours jumps there, in built-in chains too, goes in the same commit.)
// All at once, since a namespace may have as many chains as its pod likes.
func (o Owner) othersLeadTo(chains []SavedChain) map[string]bool {
	var led map[string]bool
	for _, c := range chains {
		if o.OwnsChain(c.Name) {
			continue
		}
		for _, r := range c.Rules {
			if IsBuiltin(c.Name) && r.Known {
				continue // a known jump to our chains is ours
			}
			words := strings.Fields(r.Text)
			for i, w := range words {
				if (w != "-j" && w != "-g") || i+1 == len(words) || !o.OwnsChain(words[i+1]) {
					continue
				}
				if led == nil {
					led = map[string]bool{}
				}
				led[words[i+1]] = true
			}
		}
	}
	return led
}

func (c *Chain) equalLive(live *SavedChain) bool {
	return live != nil && slices.EqualFunc(c.Rules, live.Rules, func(r Rule, l SavedRule) bool {
		return l.Known && r.Equal(l.Rule)
	})
}

func sameRules(live *SavedChain, indexes []int, want []Rule) bool {
	return slices.EqualFunc(indexes, want, func(i int, w Rule) bool {
		return live.Rules[i].Known && live.Rules[i].Rule.Equal(w)
	})
}

// Commits counts the transactions of a text for iptables-restore.
func Commits(text string) int {
	n := 0
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "COMMIT" {
			n++
		}
	}
	return n
}
