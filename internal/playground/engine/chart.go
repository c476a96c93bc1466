package engine

import (
	"fmt"
	"strconv"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Chart is the picture of a family's rules: boxes of rules, and where each rule sends a packet.
type Chart struct {
	Family string `json:"family"`
	Chains []Box  `json:"chains"`
}

// Box is a chain.
type Box struct {
	// ID is "nat/OUTPUT".
	ID    string `json:"id"`
	Table string `json:"table"`
	Name  string `json:"name"`
	Rows  []Row  `json:"rows"`
}

// Row is a rule. Its ID is that of a step of a traced packet, such as "nat/OUTPUT:1".
type Row struct {
	ID    string `json:"id"`
	Match string `json:"match"`
	// Why is the rule's comment.
	Why string `json:"why,omitempty"`
	// Does says in words what it does. To is the chain that it leads to; End is where packets leave the rules, such as
	// "proxy:15001". With neither, packets go on with the next rule.
	Does string `json:"does"`
	To   string `json:"to,omitempty"`
	End  string `json:"end,omitempty"`
}

func charts(rs ruleset.Ruleset) []Chart {
	all := []Chart{}
	for _, f := range ruleset.Families {
		p := rs.Family(f)
		if p == nil || len(p.Chains) == 0 {
			continue
		}
		c := Chart{Family: f.String()}
		for _, chain := range p.Chains {
			c.Chains = append(c.Chains, box(f, chain))
		}
		all = append(all, c)
	}
	return all
}

func box(f ruleset.Family, c ruleset.Chain) Box {
	id := c.Table.String() + "/" + c.Name
	b := Box{ID: id, Table: c.Table.String(), Name: c.Name, Rows: []Row{}}
	for i, r := range c.Rules {
		bare := r
		bare.Target = ruleset.Target{}
		row := Row{ID: id + ":" + strconv.Itoa(i+1), Match: bare.Text(f), Why: r.Comment}
		row.target(c.Table, r.Target)
		b.Rows = append(b.Rows, row)
	}
	return b
}

func (r *Row) target(table ruleset.Table, t ruleset.Target) {
	port := strconv.Itoa(int(t.Port))
	switch t.Action {
	case ruleset.ActionJump:
		r.Does, r.To = "go to "+t.Chain, table.String()+"/"+t.Chain
	case ruleset.ActionRedirect:
		r.Does, r.End = "to the proxy, port "+port, "proxy:"+port
	case ruleset.ActionTProxy:
		r.Does, r.End = "to the transparent proxy, port "+port, "proxy:"+port
	case ruleset.ActionDNAT:
		r.Does, r.End = "to "+t.To.String(), "to:"+t.To.String()
	case ruleset.ActionDrop:
		r.Does, r.End = "drop", "drop"
	case ruleset.ActionReturn:
		r.Does = "back to the caller"
	case ruleset.ActionAccept:
		r.Does, r.End = "pass", "pass"
	case ruleset.ActionSetMark:
		r.Does = fmt.Sprintf("set mark %#x", t.Mark)
	case ruleset.ActionSaveMark:
		r.Does = "save the mark to the connection"
	case ruleset.ActionRestoreMark:
		r.Does = "restore the mark from the connection"
	case ruleset.ActionZone:
		r.Does = fmt.Sprintf("conntrack zone %d", t.Zone)
	case ruleset.ActionSetConnMark:
		r.Does = fmt.Sprintf("set the connection's mark to %#x/%#x", t.Mark, t.Mask)
	case ruleset.ActionNoTrack:
		r.Does = "no connection tracking"
	case ruleset.ActionLog:
		r.Does = "log"
	}
}
