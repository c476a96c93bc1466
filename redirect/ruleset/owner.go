package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// Owner identifies the chains and rules of a mesh. The zero value owns nothing.
type Owner struct {
	// Prefix begins the names of the mesh's chains ("ISTIO_"), at most 16 bytes. Chains
	// with the prefix are the mesh's, and rules in built-in chains that jump to one.
	Prefix string `json:"prefix"`
	// Marks and Zones are the packet marks and conntrack zones that the mesh uses. They identify
	// the rules that the mesh's own init container puts directly into built-in chains.
	Marks []uint32 `json:"marks,omitempty"`
	Zones []uint16 `json:"zones,omitempty"`
	// Routing is the mesh's policy routing. Everything else in the routing tables belongs to others.
	Routing Routing `json:"routing"`
	// LoopbackAddrs are the addresses that the mesh may add to lo.
	LoopbackAddrs []netip.Addr `json:"loopbackAddrs,omitempty"`
	// OtherChains are chains with the Prefix to which another program of the mesh jumps from built-in chains, where it
	// writes no other rules. The rules of others that stand beside such a jump are left alone.
	OtherChains []string `json:"otherChains,omitempty"`
	// OtherTables are the nftables tables, of family inet, in which another program of the mesh keeps its rules. To apply
	// a ruleset of the owner's removes them, once its own rules are in force.
	OtherTables []string `json:"otherTables,omitempty"`
}

// EmptyRuleset returns a ruleset without rules: to apply it removes the owner's rules and leaves those of others alone.
func (o Owner) EmptyRuleset() Ruleset {
	var rs Ruleset
	for _, f := range Families {
		rs.Set(&Program{Family: f, Owner: o})
	}
	return rs
}

// OwnsChain reports whether the chain is the mesh's. A name of more than 28 bytes, or with other
// characters than letters, digits, "_", "." and "-", never is: no program of ours can have made it.
func (o Owner) OwnsChain(name string) bool {
	return o.Prefix != "" && strings.HasPrefix(name, o.Prefix) && chains.Safe(name)
}

func (o Owner) jumps(r *SavedRule) bool {
	return r.Known && r.Rule.Target.Action == Jump && o.OwnsChain(r.Rule.Target.Chain)
}

// entryOnly reports whether a rule is the one that we write into a built-in chain: an unconditional jump.
func (o Owner) entryOnly(builtin string, r *SavedRule) bool {
	return o.jumps(r) && r.Rule.Equal(Rule{Target: Target{Action: Jump, Chain: o.Prefix + builtin}})
}

// predecessor reports whether the mesh's init container wrote the rules. It also puts
// rules without a jump into the built-in chains, which neither we do nor the program of OtherChains.
func (o Owner) predecessor(s *Saved) bool {
	if s == nil {
		return false
	}
	for i := range s.Tables {
		for _, c := range s.Tables[i].Chains {
			if !chains.IsBuiltin(c.Name) {
				continue
			}
			for j := range c.Rules {
				if r := &c.Rules[j]; o.jumps(r) && !o.entryOnly(c.Name, r) && !slices.Contains(o.OtherChains, r.Rule.Target.Chain) {
					return true
				}
			}
		}
	}
	return false
}

// rules returns the indexes of the owner's rules in a chain of the live rules.
func (o Owner) rules(live *Saved, table Table, chain string) (own []int) {
	c := live.chain(table, chain)
	switch {
	case c == nil:
	case chains.IsBuiltin(chain):
		return o.builtinRules(c, o.predecessor(live))
	case o.OwnsChain(chain):
		for i := range c.Rules {
			own = append(own, i)
		}
	}
	return own
}

// builtinRules returns the indexes of the mesh's rules in a built-in chain.
func (o Owner) builtinRules(c *SavedChain, predecessor bool) []int {
	if c == nil {
		return nil
	}
	var own []int
	lastJump := -1
	for i := range c.Rules {
		if o.jumps(&c.Rules[i]) {
			lastJump = i
		}
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		switch {
		case o.jumps(r):
		case predecessor && r.Known && o.direct(&r.Rule, i < lastJump):
		default:
			continue
		}
		own = append(own, i)
	}
	return own
}

// direct recognizes the rules that an init container puts into built-in chains: conntrack zones,
// marks, the drop of INVALID packets, DNS capture, and interfaces that bypass the jump after them.
func (o Owner) direct(r *Rule, beforeJump bool) bool {
	byMark := func(m MarkMatch) bool { return !m.IsZero() && slices.Contains(o.Marks, m.Value) }
	switch {
	case r.Target.Action == Zone:
		return slices.Contains(o.Zones, r.Target.Zone)
	case byMark(r.Mark), byMark(r.ConnMark):
		return true
	case r.Target.Action == SetMark:
		return slices.Contains(o.Marks, r.Target.Mark)
	case r.Equal(Rule{States: StateInvalid, Target: Target{Action: Drop}}):
		return true
	case r.Proto == UDP && equalPorts(r.DstPorts, Ports(Port(53))):
		return r.Target.Action == Redirect || r.Target.Action == Return && len(r.Owner) > 0
	case beforeJump && r.Target.Action == Return:
		return r.Equal(Rule{In: r.In, Out: r.Out, Target: r.Target}) && r.In.IsZero() != r.Out.IsZero()
	}
	return false
}
