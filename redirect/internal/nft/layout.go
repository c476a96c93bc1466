package nft

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// LayOut returns the tables of a ruleset as another program lays them out. It fails if the layout has no name for one.
func LayOut(rs ruleset.Ruleset, l ruleset.Layout) ([]*Table, error) {
	all := Lower(rs)
	name := func(chain string) string { return cmp.Or(l.Chains[chain], chain) }
	var tables []*Table
	for _, table := range ruleset.Tables {
		chains := slices.DeleteFunc(slices.Clone(all.Chains), func(c Chain) bool { return c.Table != table })
		if len(chains) == 0 {
			continue
		}
		t := &Table{Name: l.Tables[table], Sets: all.Sets, Chains: chains}
		if t.Name == "" {
			return nil, fmt.Errorf("the layout has no nftables table for table %s", table)
		}
		for i := range t.Chains {
			c := &t.Chains[i]
			c.Name = name(c.Chain)
			for j := range c.Rules {
				if to := &c.Rules[j].Target; to.Action == ruleset.ActionJump {
					to.Chain = name(to.Chain[len(table.String()+"/"):])
				}
			}
		}
		tables = append(tables, t)
	}
	return tables, nil
}
