package trace

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Mermaid draws the program of a family as a Mermaid flow chart, which GitHub renders in a ```mermaid block. Each chain
// is a box, and each rule a node in it, with what it matches, why, and an edge to where it sends packets. If r is not
// nil, the rules that its packet met are highlighted and the edges that it took are thick. The text ends in a newline.
func Mermaid(rs ruleset.Ruleset, f ruleset.Family, r *Result) string {
	d := drawing{family: f, program: rs.Family(f), ends: map[string]string{}}
	d.line("flowchart TD")
	if d.program == nil || len(d.program.Chains) == 0 {
		d.line("  none([%s])", quote(f.String()+" has no rules: everything passes"))
		return d.text.String()
	}
	if r != nil {
		d.steps = r.Steps
	}
	for i := range d.program.Chains {
		d.chain(&d.program.Chains[i])
	}
	for i := range d.program.Chains {
		d.edges(&d.program.Chains[i])
	}
	d.terminals()
	d.highlight()
	return d.text.String()
}

type drawing struct {
	family  ruleset.Family
	program *ruleset.FamilyRuleset
	steps   []Step
	text    strings.Builder
	ends    map[string]string // terminals in use, with their labels
	count   int               // edges so far: styles name them by number
	thick   []string
}

func (d *drawing) line(format string, args ...any) {
	visible.To(&d.text).Printf(format+"\n", args...)
}

func quote(s string) string { return `"` + escape(s) + `"` }

// escape writes as entity codes what means something to Mermaid or HTML in a label.
func escape(s string) string { return visible.Line(escaper().Replace(s)) }

var escaper = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer(
		`#`, "#35;", `"`, "#quot;", `<`, "#lt;", `>`, "#gt;", `&`, "#amp;", "`", "#96;", "*", "#42;", "\n", " ", "\r", " ",
	)
})

// id makes a node's name of letters, digits and '_', which Mermaid is sure to accept.
// Our chains have no other characters, so names stay distinct.
func id(t ruleset.Table, chain string, position int) string {
	s := t.String() + "_" + strings.Map(letterOrDigit, chain)
	if position > 0 {
		s += "_" + strconv.Itoa(position)
	}
	return s
}

func letterOrDigit(r rune) rune {
	if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
		return r
	}
	return '_'
}

func (d *drawing) chain(c *ruleset.Chain) {
	d.line("  subgraph %s[%s]", id(c.Table, c.Name, 0), quote(c.Table.String()+" "+c.Name))
	for i, r := range c.Rules {
		bare := r
		bare.Target = ruleset.Target{}
		match := bare.Text(d.family)
		if match == "" {
			match = "all"
		}
		// "1." would begin a Markdown list, which labels may not have.
		label := strconv.Itoa(i+1) + ": " + escape(match)
		if does := inPlace(r.Target); does != "" {
			label += "<br/>" + escape(does)
		}
		if r.Comment != "" {
			label += "<br/><i>" + escape(r.Comment) + "</i>"
		}
		d.line("    %s[\"%s\"]", id(c.Table, c.Name, i+1), label)
	}
	d.line("  end")
}

// inPlace describes a target after which the packet goes on with the next rule.
func inPlace(t ruleset.Target) string {
	switch t.Action {
	case ruleset.ActionSetMark:
		return fmt.Sprintf("set mark %#x", t.Mark)
	case ruleset.ActionSaveMark:
		return "save the mark to the connection"
	case ruleset.ActionRestoreMark:
		return "restore the mark from the connection"
	case ruleset.ActionZone:
		return fmt.Sprintf("conntrack zone %d", t.Zone)
	case ruleset.ActionSetConnMark:
		return fmt.Sprintf("set the connection's mark to %#x/%#x", t.Mark, t.Mask)
	case ruleset.ActionNoTrack:
		return "no connection tracking"
	case ruleset.ActionLog:
		return "log"
	}
	return ""
}

// edges draws, for each rule of a chain, the way on and the way off.
func (d *drawing) edges(c *ruleset.Chain) {
	for i, r := range c.Rules {
		from := id(c.Table, c.Name, i+1)
		if to := d.target(c, r.Target); to != "" {
			d.edge(from, "-->", to, d.met(c, i+1))
		}
		if i+1 < len(c.Rules) {
			d.edge(from, "-.->", id(c.Table, c.Name, i+2), false)
		}
	}
}

func (d *drawing) edge(from, kind, to string, met bool) {
	d.line("  %s %s %s", from, kind, to)
	if met {
		d.thick = append(d.thick, strconv.Itoa(d.count))
	}
	d.count++
}

// met reports whether the result's packet met a rule.
func (d *drawing) met(c *ruleset.Chain, position int) bool {
	return slices.ContainsFunc(d.steps, func(s Step) bool {
		return s.Table == c.Table && s.Chain == c.Name && s.Position == position
	})
}

// target is the node that a rule leads to; empty when packets go on. A RETURN is drawn to where it
// ends up when that is certain, which is in a chain that is only entered by a last rule.
func (d *drawing) target(c *ruleset.Chain, t ruleset.Target) string {
	end := func(name, label string) string {
		d.ends[name] = label
		return name
	}
	port := strconv.Itoa(int(t.Port))
	switch t.Action {
	case ruleset.ActionJump:
		if to := d.program.Chain(c.Table, t.Chain); to == nil || len(to.Rules) == 0 {
			return ""
		}
		return id(c.Table, t.Chain, 1)
	case ruleset.ActionRedirect:
		return end("redirect_"+port, "redirected to port "+port)
	case ruleset.ActionTProxy:
		return end("tproxy_"+port, "to the transparent listener on port "+port)
	case ruleset.ActionDNAT:
		return end(id(c.Table, "to "+t.To.String(), 0), "redirected to "+t.To.String())
	case ruleset.ActionDrop:
		return end("drop", "dropped")
	case ruleset.ActionReturn:
		if !d.returnsOut(c, 0) {
			return end("back_"+id(c.Table, c.Name, 0), "back to the caller")
		}
		fallthrough
	case ruleset.ActionAccept:
		return end("pass_"+c.Table.String(), "leaves "+c.Table.String()+" as it is")
	}
	return ""
}

// returnsOut reports whether leaving the chain leaves the table.
func (d *drawing) returnsOut(c *ruleset.Chain, depth int) bool {
	if chains.IsBuiltin(c.Name) {
		return true
	}
	if depth > maxDepth {
		return false
	}
	for i := range d.program.Chains {
		caller := &d.program.Chains[i]
		if caller.Table != c.Table {
			continue
		}
		for n, r := range caller.Rules {
			if r.Target.Action == ruleset.ActionJump && r.Target.Chain == c.Name && (n+1 < len(caller.Rules) || !d.returnsOut(caller, depth+1)) {
				return false
			}
		}
	}
	return true
}

// terminals declares the nodes where ways end.
func (d *drawing) terminals() {
	for _, name := range slices.Sorted(maps.Keys(d.ends)) {
		d.line("  %s([%s])", name, quote(d.ends[name]))
	}
}

func (d *drawing) highlight() {
	if len(d.steps) == 0 {
		return
	}
	var nodes []string
	for _, s := range d.steps {
		if n := id(s.Table, s.Chain, s.Position); !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	d.line("  classDef met fill:#ffe08a,stroke:#8a6d00,color:#000,stroke-width:3px")
	d.line("  class %s met", strings.Join(nodes, ","))
	if len(d.thick) > 0 {
		d.line("  linkStyle %s stroke:#8a6d00,stroke-width:4px", strings.Join(d.thick, ","))
	}
}
