package ruleset

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// MarshalText makes a Family "ipv4" or "ipv6" in JSON.
func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads what MarshalText of any version wrote. A family that this version does not know is none of [Families].
func (f *Family) UnmarshalText(b []byte) error {
	*f = math.MaxUint8
	for _, k := range Families {
		if k.String() == string(b) {
			*f = k
		}
	}
	return nil
}

type jsonProgram struct {
	Family        Family       `json:"family"`
	Owner         Ownership    `json:"owner"`
	Chains        []jsonChain  `json:"chains"`
	Routing       *Routing     `json:"routing,omitempty"`
	LoopbackAddrs []netip.Addr `json:"loopbackAddrs,omitempty"`
}

type jsonChain struct {
	Table string     `json:"table"`
	Name  string     `json:"name"`
	Rules []jsonRule `json:"rules"`
}

type jsonRule struct {
	Rule    string `json:"rule"`
	Comment string `json:"comment,omitempty"`
}

// MarshalJSON writes the program's chains in order, each rule as its canonical text with its comment beside it.
func (p *FamilyRuleset) MarshalJSON() ([]byte, error) {
	out := jsonProgram{Family: p.Family, Owner: p.Owner, Routing: p.Routing, LoopbackAddrs: p.LoopbackAddrs, Chains: []jsonChain{}}
	for _, c := range p.Chains {
		jc := jsonChain{Table: c.Table.String(), Name: c.Name, Rules: []jsonRule{}}
		for _, r := range c.Rules {
			jc.Rules = append(jc.Rules, jsonRule{r.full(p.Family), r.Comment})
		}
		out.Chains = append(out.Chains, jc)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. A rule outside the model, or a chain whose
// name no mesh's chain can have (see [Ownership.OwnsChain]), is an error, which is [ErrForeign].
func (p *FamilyRuleset) UnmarshalJSON(b []byte) error {
	var in jsonProgram
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("program from JSON: %w", err)
	}
	if !slices.Contains(Families[:], in.Family) {
		return fmt.Errorf("program from JSON: its family is not one of ipv4, ipv6: %w", ErrForeign)
	}
	*p = FamilyRuleset{Family: in.Family, Owner: in.Owner, Routing: in.Routing, LoopbackAddrs: in.LoopbackAddrs}
	for _, jc := range in.Chains {
		table, err := ParseTable(jc.Table)
		if err != nil {
			return fmt.Errorf("program from JSON: chain %s: %w", jc.Name, err)
		}
		if !chains.Safe(jc.Name) {
			return fmt.Errorf("program from JSON: chain %q: not a name of a mesh's chain: %w", jc.Name, ErrForeign)
		}
		c := Chain{Table: table, Name: jc.Name}
		for _, jr := range jc.Rules {
			r, err := ParseRule(in.Family, jr.Rule)
			if err != nil {
				return fmt.Errorf("program from JSON: chain %s: %w", jc.Name, err)
			}
			r.Comment = jr.Comment
			c.Rules = append(c.Rules, r)
		}
		p.Chains = append(p.Chains, c)
	}
	return nil
}
