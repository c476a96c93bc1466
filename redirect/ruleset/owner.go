package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// Ownership identifies the chains and rules of a mesh. The zero value owns nothing.
type Ownership struct {
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
func (o Ownership) EmptyRuleset() Ruleset {
	var rs Ruleset
	for _, f := range Families {
		rs.Set(&FamilyRuleset{Family: f, Owner: o})
	}
	return rs
}

// OwnsChain reports whether the chain is the mesh's. A name of more than 28 bytes, or with other
// characters than letters, digits, "_", "." and "-", never is: no program of ours can have made it.
func (o Ownership) OwnsChain(name string) bool {
	return o.Prefix != "" && strings.HasPrefix(name, o.Prefix) && chains.Safe(name)
}

func (o Ownership) jumps(r *LiveRule) bool {
	return r.plain && r.Rules[0].Target.Action == ActionJump && o.OwnsChain(r.JumpTo)
}

// predecessor reports whether the mesh's init container wrote the rules. It also puts
// rules without a jump into the built-in chains, which neither we do nor the program of OtherChains.
func (o Ownership) predecessor(live LiveChains) bool {
	return slices.ContainsFunc(live, func(c LiveChain) bool {
		return chains.IsBuiltin(c.Name) && slices.ContainsFunc(c.Rules, func(r LiveRule) bool {
			return o.jumps(&r) && !o.enters(&r) && !slices.Contains(o.OtherChains, r.JumpTo)
		})
	})
}

// enters reports whether the jump is one that we write in a built-in chain: to the chain of the hook, or to those of the mesh's own before and
// after it, of all packets or of those of an interface.
func (o Ownership) enters(l *LiveRule) bool {
	r := l.Rules[0]
	hook, ours := strings.CutPrefix(r.Target.Chain, o.Prefix+l.Chain)
	return ours && (hook == "" || hook == "_FIRST" || hook == "_LAST") && r.Equal(Rule{In: r.In, Out: r.Out, Target: r.Target})
}

// rules returns the owner's rules in a chain: all of one of its own, and the mesh's in a built-in one.
func (o Ownership) rules(c *LiveChain, predecessor bool) (own []*LiveRule) {
	if c == nil || !chains.IsBuiltin(c.Name) && !o.OwnsChain(c.Name) {
		return nil
	}
	lastJump := -1
	for i := range c.Rules {
		if o.jumps(&c.Rules[i]) {
			lastJump = i
		}
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		if !chains.IsBuiltin(c.Name) || o.jumps(r) || predecessor && r.plain && o.direct(&r.Rules[0], i < lastJump) {
			own = append(own, r)
		}
	}
	return own
}

// direct recognizes the rules that an init container puts into built-in chains: conntrack zones,
// marks, the drop of INVALID packets, DNS capture, and interfaces that bypass the jump after them.
func (o Ownership) direct(r *Rule, beforeJump bool) bool {
	byMark := func(m MarkMatch) bool { return !m.IsZero() && slices.Contains(o.Marks, m.Value) }
	switch {
	case r.Target.Action == ActionZone:
		return slices.Contains(o.Zones, r.Target.Zone)
	case byMark(r.Mark), byMark(r.ConnMark):
		return true
	case r.Target.Action == ActionSetMark:
		return slices.Contains(o.Marks, r.Target.Mark)
	case r.Equal(Rule{States: StateInvalid, Target: Target{Action: ActionDrop}}):
		return true
	case r.Proto == UDP && equalPorts(r.DstPorts, MatchPorts(Port(53))):
		return r.Target.Action == ActionRedirect || r.Target.Action == ActionReturn && len(r.Owner) > 0
	case beforeJump && r.Target.Action == ActionReturn:
		return r.Equal(Rule{In: r.In, Out: r.Out, Target: r.Target}) && r.In.IsZero() != r.Out.IsZero()
	}
	return false
}
