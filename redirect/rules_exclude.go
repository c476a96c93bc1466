package redirect

import (
	"slices"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// maxComment bounds a rule's comment, in bytes. Every rule made from a list repeats
// the list in its comment, and nft takes at most 127 bytes.
const maxComment = 120

// logs returns the rule that makes the kernel log what enters a hook.
func (g *generator) logs(hook string) []ruleset.Rule {
	if !g.Log.Enabled {
		return nil
	}
	return []ruleset.Rule{{
		Target: ruleset.Target{Action: ruleset.ActionLog, Prefix: g.Names.ChainPrefix + hook + ": ", Level: g.Log.Level}, Comment: "log each connection",
	}}
}

// exclusions returns one rule for each combination of an exclusion's lists.
func (g *generator) exclusions(list []Exclusion) []ruleset.Rule {
	var rules []ruleset.Rule
	const field = "outbound.exclude"
	for _, e := range list {
		r := ruleset.Rule{Proto: e.Protocol.proto(), Target: g.passes()}
		if g.count == nil { // it may be as long as the lists
			r.Comment = truncate.Text("excluded: "+e.String(), maxComment)
		}
		each := func(m ruleset.PrefixMatch) {
			r.Dst = m
			if len(e.UIDs) == 0 {
				rules = append(rules, g.onPorts(field, e.Ports, r)...)
			}
			g.each(field, len(e.UIDs), &rules, func(j int) {
				r.Owner = []ruleset.OwnerMatch{{Kind: ruleset.OwnerUID, First: e.UIDs[j].First, Last: e.UIDs[j].Last}}
				rules = append(rules, g.onPorts(field, e.Ports, r)...)
			})
		}
		if e.CIDRs.All() {
			each(ruleset.PrefixMatch{})
		} else {
			g.eachPrefix(field, e.CIDRs, &rules, each)
		}
	}
	return rules
}

// inboundExceptions returns rules for inbound connections that do not go through the proxy's
// inbound listener: those of excluded clients, to the tunnel's own listener and to excluded ports.
func (g *generator) inboundExceptions() []ruleset.Rule {
	var rules []ruleset.Rule
	g.eachPrefix("inbound.excludeSources", g.Inbound.ExcludeSources, &rules, func(m ruleset.PrefixMatch) {
		r := ruleset.Rule{Src: m, Target: g.passes(), Comment: "client is excluded"}
		g.carries("inbound.excludeSources", &r)
		rules = append(rules, r)
	})
	g.eachPrefix("inbound.probeSources", g.Inbound.ProbeSources, &rules, func(m ruleset.PrefixMatch) {
		rules = append(rules, g.onPorts("inbound.probePorts", g.Inbound.ProbePorts, ruleset.Rule{
			Src: m, Proto: ruleset.TCP, Target: g.passes(), Comment: "probe of the application",
		})...)
	})
	if g.Proxy.TunnelPort != 0 {
		rules = append(rules, ruleset.Rule{
			Proto: ruleset.TCP, DstPorts: ruleset.MatchPorts(ruleset.Port(g.Proxy.TunnelPort)),
			Target: returns, Comment: "the proxy's own tunnel listener",
		})
	}
	if g.Inbound.Ports.All() {
		rules = append(rules, g.onPorts("inbound.excludePorts", g.Inbound.ExcludePorts, ruleset.Rule{
			Proto: ruleset.TCP, Target: g.passes(), Comment: "inbound port is excluded",
		})...)
	}
	return rules
}

// networks calls fn with each virtual network of the family.
func (g *generator) networks(rules *[]ruleset.Rule, fn func(VirtualNetwork)) {
	all := slices.DeleteFunc(slices.Clone(g.VirtualNetworks), func(n VirtualNetwork) bool { return ruleset.FamilyOf(n.Local.Addr()) != g.family })
	g.each("virtualNetworks", len(all), rules, func(i int) { fn(all[i]) })
}

// virtualNetworks treats what comes from behind an interface as outbound, unless it is for a neighbour there.
func (g *generator) virtualNetworks() []ruleset.Rule {
	var rules []ruleset.Rule
	g.networks(&rules, func(n VirtualNetwork) {
		in := ruleset.InterfaceMatch{Name: n.Interface}
		if g.DNS.Enabled() && len(g.DNS.To) == 0 {
			rules = append(rules, ruleset.Rule{
				In: in, Proto: ruleset.UDP, DstPorts: port53,
				Target: ruleset.Target{Action: ruleset.ActionRedirect, Port: g.DNS.Port}, Comment: "look-up from a virtual network",
			})
		}
		rules = append(rules, ruleset.Rule{
			Dst: ruleset.PrefixMatch{Prefix: n.Local.Masked(), Not: true}, In: in, Proto: ruleset.TCP,
			Target: g.to(chainRedirect), Comment: "outbound traffic of a virtual network",
		})
	})
	return rules
}

// virtualZones puts the DNS queries of virtual networks in the zone of the proxy's
// answers, so that the answers find their way back.
func (g *generator) virtualZones() []ruleset.Rule {
	var rules []ruleset.Rule
	g.networks(&rules, func(n VirtualNetwork) {
		rules = append(rules, ruleset.Rule{
			In: ruleset.InterfaceMatch{Name: n.Interface}, Proto: ruleset.UDP, DstPorts: port53,
			Target: ruleset.Target{Action: ruleset.ActionZone, Zone: g.Names.AppZone}, Comment: "question from a virtual network",
		})
	})
	return rules
}

// byMark reports whether the proxy is known by the mark of its packets.
func (g *generator) byMark() bool { return !g.Proxy.Mark.IsZero() }

// marked returns the rule that lets the proxy's marked packets through.
func (g *generator) marked(comment string) []ruleset.Rule {
	if !g.byMark() {
		return nil
	}
	return []ruleset.Rule{{Mark: g.Proxy.Mark.match(false), Target: returns, Comment: comment}}
}

// replyMark is the mark that routes the application's replies to a proxy that is known by its mark.
func (g *generator) replyMark() Mark { return Mark{g.Names.InboundMark, g.Names.MarkMask} }

// notWithinPod narrows the DNS rule of a proxy known by its mark, because it comes
// before the rules that pass the proxy's packets and connections within the pod. Queries to a resolver in
// the pod are not captured: over UDP wherever it listens, over TCP on localhost.
func (g *generator) notWithinPod(r *ruleset.Rule) {
	if !g.DNS.Everyone {
		r.Mark = g.Proxy.Mark.match(true)
	}
	if r.Proto == ruleset.UDP {
		r.Out = ruleset.InterfaceMatch{Name: loopback.Name, Not: true}
	} else {
		r.Dst = ruleset.PrefixMatch{Prefix: g.localhost(), Not: true}
	}
}

// markMangle joins the two ends of a connection that a proxy known by its mark makes to the application from the
// client's address. It saves the mark of the first packet with the connection and puts it on the replies, and the
// policy route then keeps these in the pod instead of sending them to the client. Exclusions do not apply: such
// connections also carry what arrived at the tunnel listener.
func (g *generator) markMangle() (prerouting, output []ruleset.Rule) {
	if !g.byMark() {
		return nil, nil
	}
	prerouting = []ruleset.Rule{{
		Mark:    g.Proxy.Mark.match(false),
		Target:  ruleset.Target{Action: ruleset.ActionSetConnMark, Mark: g.Names.InboundMark, Mask: fullMask(g.Names.MarkMask)},
		Comment: "proxy to application with the client's address: remember it for the replies",
	}}
	output = []ruleset.Rule{{
		ConnMark: g.replyMark().match(false), Target: ruleset.Target{Action: ruleset.ActionRestoreMark},
		Comment: "application's reply: back to the proxy",
	}}
	return prerouting, output
}
