package ruleset

import (
	"net/netip"
	"slices"
	"strings"
)

// Owner tells the chains and rules of a mesh's program from those of others.
// The zero value owns nothing.
type Owner struct {
	// Prefix begins the names of the mesh's chains ("ISTIO_"), at most
	// [MaxPrefix] bytes. A chain with the prefix is the mesh's, and so is each
	// rule in a built-in chain that jumps to one.
	Prefix string `json:"prefix"`
	// Marks and Zones are the packet marks and conntrack zones that the mesh
	// uses. An earlier program of the mesh's own init container put rules
	// directly into built-in chains; they are recognised by these.
	Marks []uint32 `json:"marks,omitempty"`
	Zones []uint16 `json:"zones,omitempty"`
	// Routing is the mesh's policy routing, where a program has any; what else
	// is in the routing tables is not the mesh's.
	Routing Routing `json:"routing"`
	// LoopbackAddrs are the addresses that the mesh may give to lo.
	LoopbackAddrs []netip.Addr `json:"loopbackAddrs,omitempty"`
}

// Nothing is the ruleset of a pod that is to have no rules of the owner's: it
// has no chains in either family, but says whose are unwanted.
func (o Owner) Nothing() Ruleset {
	var rs Ruleset
	for _, f := range Families {
		rs.Set(&Program{Family: f, Owner: o})
	}
	return rs
}

// MaxPrefix is the longest chain prefix: iptables allows 28 bytes for a chain
// name (XT_EXTENSION_MAXNAMELEN less the terminating zero), and our longest
// suffix takes 11.
const MaxPrefix = 16

// OwnsChain reports whether the chain is the mesh's. One that is not [SafeChain] is
// not, whatever it begins with: no program of ours can have made it.
func (o Owner) OwnsChain(name string) bool {
	return o.Prefix != "" && strings.HasPrefix(name, o.Prefix) && SafeChain(name)
}

func (o Owner) jumps(r *SavedRule) bool {
	return r.Known && r.Rule.Target.Action == Jump && o.OwnsChain(r.Rule.Target.Chain)
}

// entryOnly reports whether a rule is the one that we write into a built-in
// chain: an unconditional jump.
func (o Owner) entryOnly(builtin string, r *SavedRule) bool {
	return o.jumps(r) && r.Rule.Equal(Rule{Target: JumpTo(o.Prefix + builtin)})
}

// predecessor reports whether the rules of a table were written by a program
// that, unlike ours, works in the built-in chains themselves. Only then are
// rules without a jump looked at: elsewhere they are somebody else's.
func (o Owner) predecessor(s *Saved) bool {
	if s == nil {
		return false
	}
	for i := range s.Tables {
		for _, c := range s.Tables[i].Chains {
			if !IsBuiltin(c.Name) {
				continue
			}
			for j := range c.Rules {
				if o.jumps(&c.Rules[j]) && !o.entryOnly(c.Name, &c.Rules[j]) {
					return true
				}
			}
		}
	}
	return false
}

// Rules returns the indexes of the owner's rules in a chain of the live rules.
func (o Owner) Rules(live *Saved, table, chain string) (own []int) {
	c := live.chain(table, chain)
	switch {
	case c == nil:
	case IsBuiltin(chain):
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

// direct recognises the rules that an init container's program leaves in
// built-in chains: conntrack zones, marks, the drop of INVALID packets, DNS
// capture, and interfaces that bypass the jump after them.
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
