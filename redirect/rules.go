package redirect

import (
	"net/netip"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// The suffixes of our chains' names, after [Names.ChainPrefix].
const (
	chainInbound    = "INBOUND"
	chainRedirect   = "REDIRECT"
	chainInRedirect = "IN_REDIRECT"
	chainDNS        = "OUTPUT_DNS"
	chainDivert     = "DIVERT"
	chainTProxy     = "TPROXY"
)

// dnsPort is where resolvers listen (RFC 1035, section 4.2).
const dnsPort = 53

var port53 = ruleset.Ports(ruleset.Port(dnsPort))

// Ruleset validates r and returns its rules for each family that is not
// passed, at most [MaxRules] in all. The error is that of [Redirect.Validate].
//
// It takes no context, because the largest ruleset takes some ten milliseconds.
func (r Redirect) Ruleset() (ruleset.Ruleset, error) {
	var rs ruleset.Ruleset
	if err := r.Validate(); err != nil {
		return rs, err
	}
	for _, f := range ruleset.Families {
		g := generator{Redirect: r, family: f}
		switch r.Family(f) {
		case FamilyCapture:
			rs.Set(g.capture())
		case FamilyDrop:
			rs.Set(g.refuse())
		case FamilyPass:
			// No program: nothing in the family's tables is ours.
		}
	}
	return rs, nil
}

// MustRuleset is Ruleset for a Redirect known to be valid, as in examples and tests. It panics on error.
func (r Redirect) MustRuleset() ruleset.Ruleset {
	rs, err := r.Ruleset()
	if err != nil {
		panic(err)
	}
	return rs
}

// generator makes the program of one family.
type generator struct {
	Redirect
	family ruleset.Family
	chains []ruleset.Chain
}

// section is the rules of one chain of ours, by the suffix of its name.
type section struct {
	suffix string
	rules  []ruleset.Rule
}

// table adds a table's chains in canonical order: built-in chains, then ours. A
// section without rules makes no chain and no jump.
func (g *generator) table(t ruleset.Table, sections ...section) {
	for _, s := range sections {
		if len(s.rules) > 0 && ruleset.IsBuiltin(s.suffix) {
			g.chains = append(g.chains, ruleset.Chain{Table: t, Name: s.suffix, Rules: []ruleset.Rule{g.jump(s.suffix)}})
		}
	}
	for _, s := range sections {
		if len(s.rules) > 0 {
			g.chains = append(g.chains, ruleset.Chain{Table: t, Name: g.Names.ChainPrefix + s.suffix, Rules: s.rules})
		}
	}
}

func (g *generator) to(suffix string) ruleset.Target {
	return ruleset.JumpTo(g.Names.ChainPrefix + suffix)
}

func (g *generator) jump(suffix string) ruleset.Rule { return ruleset.Rule{Target: g.to(suffix)} }

func (g *generator) program() *ruleset.Program {
	p := &ruleset.Program{Family: g.family, Owner: g.Names.Owner(), Chains: g.chains}
	if g.byMark() || g.Mode == ModeTProxy && g.Family(g.family) == FamilyCapture {
		p.Routing = &p.Owner.Routing
	}
	if g.family == ruleset.IPv6 && g.Family(g.family) == FamilyCapture {
		p.LoopbackAddrs = p.Owner.LoopbackAddrs
	}
	return p
}

func (g *generator) capture() *ruleset.Program {
	g.chains = make([]ruleset.Chain, 0, 12)
	if g.hasZones() {
		g.zones()
	}
	g.mangle()
	g.nat()
	return g.program()
}

var (
	returns = ruleset.Target{Action: ruleset.Return}
	accepts = ruleset.Target{Action: ruleset.Accept}
	drops   = ruleset.Target{Action: ruleset.Drop}
)

// localhost is the only loopback address that is left alone: a mesh may give services other addresses of 127.0.0.0/8.
func (g *generator) localhost() netip.Prefix {
	a := netip.IPv6Loopback()
	if g.family == ruleset.IPv4 {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// passSource returns the family's address from which the proxy speaks to the application, if there is one.
func (g *generator) passSource() (netip.Prefix, bool) {
	for _, a := range g.Proxy.PassSources {
		if ruleset.FamilyOf(a) == g.family {
			return netip.PrefixFrom(a, a.BitLen()), true
		}
	}
	return netip.Prefix{}, false
}

// owners returns the proxy's ids, users first: the order matters for a socket that
// has only one of its user and its group.
func (g *generator) owners() []ruleset.OwnerMatch {
	owners := make([]ruleset.OwnerMatch, 0, len(g.Proxy.UIDs)+len(g.Proxy.GIDs))
	for _, id := range g.Proxy.UIDs {
		owners = append(owners, ruleset.OwnerIs(ruleset.UID, id))
	}
	for _, id := range g.Proxy.GIDs {
		owners = append(owners, ruleset.OwnerIs(ruleset.GID, id))
	}
	return owners
}

// excludedInterfaces returns the first rules of a hook.
func (g *generator) excludedInterfaces(in bool) []ruleset.Rule {
	var rules []ruleset.Rule
	for _, name := range g.ExcludeInterfaces {
		r := ruleset.Rule{Target: returns, Comment: "interface is excluded"}
		if in {
			r.In.Name = name
		} else {
			r.Out.Name = name
		}
		rules = append(rules, r)
	}
	return rules
}

// onPorts returns a rule for each group of ports that fits one match: a single rule for all ports, no rule for none.
func onPorts(s PortSet, base ruleset.Rule) []ruleset.Rule {
	if s.All() {
		return []ruleset.Rule{base}
	}
	var rules []ruleset.Rule
	for _, chunk := range ruleset.ChunkPorts(s.ranges) {
		r := base
		r.DstPorts = ruleset.Ports(chunk...)
		rules = append(rules, r)
	}
	return rules
}

// onPrefixes returns a rule for each prefix of the family: a single rule for all addresses, no rule for none.
func (g *generator) onPrefixes(s PrefixSet, base ruleset.Rule) []ruleset.Rule {
	if s.All() {
		return []ruleset.Rule{base}
	}
	var rules []ruleset.Rule
	for _, p := range s.prefixes {
		if ruleset.FamilyOf(p.Addr()) == g.family {
			r := base
			r.Dst = ruleset.Prefix(p)
			rules = append(rules, r)
		}
	}
	return rules
}

// groupFilter passes the traffic of groups that is not redirected.
func (g *generator) groupFilter() []ruleset.Rule {
	var rules []ruleset.Rule
	if groups := g.Outbound.OwnerGroups; len(groups) > 0 {
		others := make([]ruleset.OwnerMatch, len(groups))
		for i, id := range groups {
			others[i] = ruleset.OwnerIsNot(ruleset.GID, id)
		}
		rules = append(rules, ruleset.Rule{Owner: others, Target: returns, Comment: "group is not among those that are redirected"})
	}
	for _, id := range g.Outbound.ExcludeOwnerGroups {
		rules = append(rules, ruleset.Rule{
			Owner: []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.GID, id)}, Target: returns, Comment: "group is excluded",
		})
	}
	return rules
}
