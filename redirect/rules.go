package redirect

import (
	"net/netip"

	"github.com/meshcni/meshcni/redirect/internal/chains"
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

// dnsPort is the port of resolvers (RFC 1035, section 4.2).
const dnsPort = 53

var port53 = ruleset.MatchPorts(ruleset.Port(dnsPort))

// Ruleset validates r and returns its rules for each family that is not
// passed, at most [MaxRules] in all. The error is that of [Redirect.Validate]. More than fifteen prefixes, or ports, of one list are one rule:
// nftables has them in a set, and iptables has several rules, see [ruleset.Ruleset.Iptables].
//
// It takes no context, because the largest ruleset takes some ten milliseconds.
func (r Redirect) Ruleset() (rs ruleset.Ruleset, err error) {
	if err := r.Validate(); err != nil {
		return rs, err
	}
	for _, f := range ruleset.Families {
		g := generator{Redirect: r, family: f}
		if p := g.program(); p != nil {
			rs.Set(p)
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
	// count is set if rules are only counted, not made; see each.
	count   *counter
	matches map[*netip.Prefix][]ruleset.PrefixMatch // by the first prefix of a PrefixSet's list
	// final is set while the rules of the nat table are made, if FinalPass is.
	final bool
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
		if len(s.rules) > 0 && chains.IsBuiltin(s.suffix) {
			g.chains = append(g.chains, ruleset.Chain{Table: t, Name: s.suffix, Rules: g.entries(s.suffix)})
		}
	}
	for _, s := range sections {
		if len(s.rules) > 0 {
			g.chains = append(g.chains, ruleset.Chain{Table: t, Name: g.Names.ChainPrefix + s.suffix, Rules: s.rules})
		}
	}
}

func (g *generator) to(suffix string) ruleset.Target {
	return ruleset.Target{Action: ruleset.ActionJump, Chain: g.Names.ChainPrefix + suffix}
}

func (g *generator) jump(suffix string) ruleset.Rule { return ruleset.Rule{Target: g.to(suffix)} }

// entries are the rules of a built-in chain: one jump, or one for each interface whose traffic is redirected.
func (g *generator) entries(hook string) []ruleset.Rule {
	if len(g.IncludeInterfaces) == 0 {
		return []ruleset.Rule{g.jump(hook)}
	}
	var rules []ruleset.Rule
	enter := func(name string) {
		r := g.jump(hook)
		r.Comment = "interface is included"
		if hook == ruleset.Prerouting {
			r.In.Name = name
		} else {
			r.Out.Name = name
		}
		rules = append(rules, r)
	}
	enter(loopback.Name)
	g.each("includeInterfaces", len(g.IncludeInterfaces), &rules, func(i int) { enter(g.IncludeInterfaces[i]) })
	if hook == ruleset.Prerouting {
		g.each("virtualInterfaces", len(g.VirtualInterfaces), &rules, func(i int) { enter(g.VirtualInterfaces[i]) })
		g.networks(&rules, func(n VirtualNetwork) { enter(n.Interface) })
	}
	return rules
}

// program makes the family's program; nil if nothing in the family's tables is ours.
func (g *generator) program() *ruleset.FamilyRuleset {
	switch g.Family(g.family) {
	case FamilyCapture:
		g.capture()
	case FamilyDrop:
		g.refuse()
	case FamilyPass:
		return nil
	}
	p := &ruleset.FamilyRuleset{Family: g.family, Owner: g.Names.Owner(), Chains: g.chains}
	if g.byMark() || g.Mode == ModeTProxy && g.Family(g.family) == FamilyCapture {
		p.Routing = &p.Owner.Routing
	}
	if g.family == ruleset.IPv6 && g.Family(g.family) == FamilyCapture {
		p.LoopbackAddrs = p.Owner.LoopbackAddrs
	}
	return p
}

func (g *generator) capture() {
	g.chains = make([]ruleset.Chain, 0, 12)
	if g.hasZones() {
		g.zones()
	}
	g.mangle()
	g.nat()
	g.addOwn()
}

func toPort(port uint16) ruleset.Rule {
	return ruleset.Rule{Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: port}}
}

var (
	returns = ruleset.Target{Action: ruleset.ActionReturn}
	accepts = ruleset.Target{Action: ruleset.ActionAccept}
	drops   = ruleset.Target{Action: ruleset.ActionDrop}
)

// localhost is the part of the family's loopback range that is left alone.
func (g *generator) localhost() netip.Prefix {
	switch {
	case g.family == ruleset.IPv6:
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	case g.Localhost.IsValid():
		return g.Localhost.Masked()
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 32)
}

// loopbackIPv4 are the addresses of an IPv4 host that are all on lo (RFC 1122, 3.2.1.3).
var loopbackIPv4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)

// passSource returns the family's address from which the proxy speaks to the application, if there is one.
func (g *generator) passSource() (netip.Prefix, bool) {
	for _, a := range g.Proxy.PassSources {
		if ruleset.FamilyOf(a) == g.family {
			return netip.PrefixFrom(a, a.BitLen()), true
		}
	}
	return netip.Prefix{}, false
}

// owners calls fn with each of the proxy's ids, users first: the order matters for a
// socket that has only one of its user and its group.
func (g *generator) owners(rules *[]ruleset.Rule, fn func(ruleset.OwnerMatch)) {
	for _, list := range []struct {
		field string
		kind  ruleset.OwnerKind
		ids   []uint32
	}{{"proxy.uids", ruleset.OwnerUID, g.Proxy.UIDs}, {"proxy.gids", ruleset.OwnerGID, g.Proxy.GIDs}} {
		g.each(list.field, len(list.ids), rules, func(i int) { fn(ruleset.OwnerIs(list.kind, list.ids[i])) })
	}
}

// passes is the target of what is left alone; see [Redirect.FinalPass]. In other tables than nat a packet always goes on.
func (g *generator) passes() ruleset.Target {
	if g.final {
		return accepts
	}
	return returns
}

// excludedInterfaces returns the first rules of a hook.
func (g *generator) excludedInterfaces(in bool) []ruleset.Rule {
	var rules []ruleset.Rule
	g.each("excludeInterfaces", len(g.ExcludeInterfaces), &rules, func(i int) {
		r := ruleset.Rule{Target: g.passes(), Comment: "interface is excluded"}
		if in {
			r.In.Name = g.ExcludeInterfaces[i]
		} else {
			r.Out.Name = g.ExcludeInterfaces[i]
		}
		rules = append(rules, r)
	})
	return rules
}

// onPorts returns a rule for the field's ports: one for any port if they are all, no rule for none.
func (g *generator) onPorts(field string, s PortSet, base ruleset.Rule) []ruleset.Rule {
	switch {
	case s.All():
	case len(s.ranges) == 0:
		return nil
	default:
		base.DstPorts = ruleset.MatchPorts(s.ranges...)
	}
	g.carries(field, &base)
	return []ruleset.Rule{base}
}

// onPrefixes returns a rule for each of the field's prefixes of the family, or one for all of more than a handful: a single
// rule for all addresses, no rule for none.
func (g *generator) onPrefixes(field string, s PrefixSet, base ruleset.Rule) []ruleset.Rule {
	if s.All() {
		return []ruleset.Rule{base}
	}
	var rules []ruleset.Rule
	g.eachPrefix(field, s, &rules, func(m ruleset.PrefixMatch) {
		base.Dst = m
		g.carries(field, &base)
		rules = append(rules, base)
	})
	return rules
}

// handful is the most prefixes that have a rule each. More are in one set.
const handful = 15

// eachPrefix calls fn, which adds to the rules, with a match for each of the field's prefixes of the family, or with one for all of more than
// a handful. The set may be all: there is no prefix then.
func (g *generator) eachPrefix(field string, s PrefixSet, rules *[]ruleset.Rule, fn func(ruleset.PrefixMatch)) {
	if len(s.prefixes) == 0 {
		return
	}
	key := &s.prefixes[0]
	matches, known := g.matches[key] // lists around may ask for them again and again
	if !known {
		list := s.Family(g.family)
		if len(list) > handful {
			matches = []ruleset.PrefixMatch{ruleset.MatchPrefix(list...)}
		} else {
			for _, p := range list {
				matches = append(matches, ruleset.MatchPrefix(p))
			}
		}
		if g.matches == nil {
			g.matches = map[*netip.Prefix][]ruleset.PrefixMatch{}
		}
		g.matches[key] = matches
	}
	g.each(field, len(matches), rules, func(i int) { fn(matches[i]) })
}

// groupFilter passes the traffic of groups that is not redirected.
func (g *generator) groupFilter() []ruleset.Rule {
	var rules []ruleset.Rule
	if groups := g.Outbound.OwnerGroups; len(groups) > 0 {
		others := make([]ruleset.OwnerMatch, len(groups))
		for i, id := range groups {
			others[i] = ruleset.OwnerMatch{Kind: ruleset.OwnerGID, First: id, Last: id, Not: true}
		}
		rules = append(rules, ruleset.Rule{Owner: others, Target: g.passes(), Comment: "group is not among those that are redirected"})
	}
	g.each("outbound.excludeOwnerGroups", len(g.Outbound.ExcludeOwnerGroups), &rules, func(i int) {
		rules = append(rules, ruleset.Rule{
			Owner:  []ruleset.OwnerMatch{ruleset.OwnerIs(ruleset.OwnerGID, g.Outbound.ExcludeOwnerGroups[i])},
			Target: g.passes(), Comment: "group is excluded",
		})
	})
	return rules
}
