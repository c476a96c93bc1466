package redirect

import (
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// nat redirects connections. The kernel asks this table about the first packet of a
// connection only, so no rule here is about replies.
//
//	outside -> eth0 -> PREROUTING -> INBOUND -> IN_REDIRECT -> proxy :15006
//	application -> OUTPUT -> REDIRECT -> proxy :15001
//	proxy -> OUTPUT -> outside, or by lo -> IN_REDIRECT (a call to this very pod)
func (g *generator) nat() {
	g.final = g.FinalPass
	defer func() { g.final = false }()
	prerouting := append(g.logs(ruleset.Prerouting), g.virtualInterfaces()...)
	prerouting = append(prerouting, g.virtualNetworks()...)
	prerouting = append(prerouting, g.excludedInterfaces(true)...)
	inbound := g.natInbound()
	if len(inbound) > 0 {
		prerouting = append(prerouting, ruleset.Rule{Proto: ruleset.TCP, Target: g.to(chainInbound)})
	}
	dns := g.natDNS()
	output := g.natOutput(len(dns) > 0)
	redirects := func(suffix string, port uint16, users ...[]ruleset.Rule) section {
		uses := func(rules []ruleset.Rule) bool {
			return slices.ContainsFunc(rules, func(r ruleset.Rule) bool { return r.Target == g.to(suffix) })
		}
		if !slices.ContainsFunc(users, uses) {
			return section{}
		}
		return section{suffix, []ruleset.Rule{toPort(port)}}
	}
	g.table(ruleset.NAT,
		section{ruleset.Prerouting, prerouting},
		section{ruleset.Output, output},
		section{chainInbound, inbound},
		section{chainDNS, dns},
		redirects(chainInRedirect, g.Proxy.InboundPort, inbound, output),
		redirects(chainRedirect, g.Proxy.OutboundPort, prerouting, output),
	)
}

// virtualInterfaces treats what comes from a virtual machine behind the pod as
// outbound, by address only, and never as a call to the pod.
func (g *generator) virtualInterfaces() []ruleset.Rule {
	var rules []ruleset.Rule
	g.each("virtualInterfaces", len(g.VirtualInterfaces), &rules, func(i int) {
		in := ruleset.InterfaceMatch{Name: g.VirtualInterfaces[i]}
		rules = append(rules, g.onPrefixes("outbound.cidrs", g.Outbound.CIDRs, ruleset.Rule{
			In: in, Target: g.to(chainRedirect), Comment: "outbound traffic of a virtual machine",
		})...)
		rest := ruleset.Rule{In: in, Target: returns, Comment: "the rest of a virtual machine's traffic"}
		if g.byMark() {
			rest.Proto = ruleset.TCP // nothing else could be redirected
		}
		rules = append(rules, rest)
	})
	return rules
}

func (g *generator) natInbound() []ruleset.Rule {
	if g.Mode != ModeRedirect || g.Inbound.Ports.Empty() {
		return nil
	}
	rules := append(g.inboundExceptions(), g.marked("proxy to application")...)
	captured := ruleset.Rule{Proto: ruleset.TCP, Target: g.to(chainInRedirect), Comment: "inbound connection"}
	if g.byMark() {
		captured.Dst = ruleset.PrefixMatch{Prefix: g.localhost(), Not: true} // as for outbound connections
	}
	return append(rules, g.onPorts("inbound.ports", g.Inbound.Ports, captured)...)
}

// natOutput jumps to the capture of DNS queries, if there is any.
func (g *generator) natOutput(capturesDNS bool) []ruleset.Rule {
	rules := make([]ruleset.Rule, 0, 16)
	rules = append(rules, g.logs(ruleset.Output)...)
	rules = append(rules, g.excludedInterfaces(false)...)
	var dns []ruleset.Rule
	if capturesDNS {
		dns = g.dnsJump()
	}
	if g.DNS.Everyone {
		rules, dns = append(rules, dns...), nil
	}
	rules = append(rules, g.excludedOutboundPorts()...)
	rules = append(rules, g.exclusions(g.Outbound.Exclude)...)
	if src, ok := g.passSource(); ok {
		pass := ruleset.Rule{Src: ruleset.MatchPrefix(src), Out: loopback, Target: returns, Comment: "proxy to application, inbound"}
		if g.DNS.UDPOnly {
			pass.Proto = ruleset.TCP // all else that it could let through is DNS queries
		}
		rules = append(rules, pass)
	}
	if g.byMark() {
		rules, dns = append(rules, dns...), nil
		rules = append(rules, ruleset.Rule{
			Proto: ruleset.TCP, Mark: g.replyMark().match(false), Target: g.passes(), Comment: "application's reply",
		})
	}
	if g.Mode == ModeTProxy && g.Loopback == LoopbackHairpin {
		// Its source is no address of the proxy's, so the rules below would take it for a call to this very pod: a loop.
		rules = append(rules, ruleset.Rule{
			Out: loopback, Proto: ruleset.TCP, Mark: Mark{Value: g.Names.InboundMark}.match(false), Target: g.passes(),
			Comment: "proxy to application with the client's address",
		})
	}
	g.owners(&rules, func(o ruleset.OwnerMatch) { rules = g.appendOwner(rules, o) })
	if g.Loopback == LoopbackPass {
		within := ruleset.Rule{Out: loopback, Target: g.passes(), Comment: "within the pod"}
		if g.final {
			within.Dst = ruleset.PrefixMatch{Prefix: g.localhost(), Not: true}
		}
		rules = append(rules, within)
	}
	rules = append(rules, g.marked("proxy to the outside")...)
	rules = append(rules, g.groupFilter()...)
	rules = append(rules, dns...)
	rules = append(rules, ruleset.Rule{
		Dst: ruleset.MatchPrefix(g.localhost()), Target: returns, Comment: "application to localhost",
	})
	return append(rules, g.outboundSelection(ruleset.Rule{Target: g.to(chainRedirect)})...)
}

var loopback = ruleset.InterfaceMatch{Name: "lo"}

// appendOwner adds the rules for one of the proxy's ids. Packets to the pod's own
// addresses leave by lo, so there are three cases:
//
//	proxy -> own service address: back to the proxy, as inbound
//	application -> own pod: straight, it needs no mesh to call itself
//	proxy -> anywhere else: out
//
// With several ids, the second rule of the first id also passes calls of the later
// ids to the pod. Istio's own rules do the same, and pods are configured for them.
func (g *generator) appendOwner(rules []ruleset.Rule, o ruleset.OwnerMatch) []ruleset.Rule {
	own, other := []ruleset.OwnerMatch{o}, []ruleset.OwnerMatch{o}
	other[0].Not = true
	outside := ruleset.Rule{Owner: own, Target: returns, Comment: "proxy to the outside"}
	if g.Loopback != LoopbackHairpin {
		return append(rules, outside)
	}
	var except []ruleset.PortRange
	// Where queries over TCP are not captured, port 53 is as any other. Istio's rules for groups do not have it.
	if g.DNS.Enabled() && !g.DNS.UDPOnly && o.Kind == ruleset.OwnerUID {
		except = append(except, ruleset.Port(dnsPort))
	}
	if g.Proxy.TunnelPort != 0 {
		except = append(except, ruleset.Port(g.Proxy.TunnelPort))
	}
	hairpin := ruleset.Rule{
		Dst: ruleset.PrefixMatch{Prefix: g.localhost(), Not: true}, Out: loopback, Proto: ruleset.TCP,
		Owner: own, Target: g.to(chainInRedirect), Comment: "proxy to this very pod, by a service's address",
	}
	if len(except) > 0 {
		hairpin.DstPorts = ruleset.PortMatch{Ranges: except, Not: true}
	}
	if g.Proxy.InboundPort != 0 {
		rules = append(rules, hairpin)
	}
	// A loopback range in CIDRs asks for calls within the pod to be redirected.
	if !g.Outbound.CIDRs.hasLoopback() {
		straight := ruleset.Rule{Out: loopback, Owner: other, Target: returns, Comment: "application to its own pod"}
		if g.DNS.Enabled() {
			// Queries to a resolver on localhost go on to the DNS rules.
			straight.Proto, straight.DstPorts = ruleset.TCP, ruleset.PortMatch{Ranges: []ruleset.PortRange{ruleset.Port(dnsPort)}, Not: true}
		}
		rules = append(rules, straight)
	}
	return append(rules, outside)
}

func (g *generator) excludedOutboundPorts() []ruleset.Rule {
	var rules []ruleset.Rule
	for _, proto := range []ruleset.Proto{ruleset.TCP, ruleset.UDP} {
		rules = append(rules, g.onPorts("outbound.excludePorts", g.Outbound.ExcludePorts, ruleset.Rule{
			Proto: proto, Target: g.passes(), Comment: "outbound port is excluded",
		})...)
	}
	return rules
}

// outboundSelection is the end of an outbound connection's walk: excluded addresses, included ports, included
// addresses. The rule gives the target of what is selected, and the protocol if the target needs one.
func (g *generator) outboundSelection(selected ruleset.Rule) []ruleset.Rule {
	rules := g.onPrefixes("outbound.excludeCIDRs", g.Outbound.ExcludeCIDRs, ruleset.Rule{Target: g.passes(), Comment: "destination is excluded"})
	byPort := selected
	byPort.Proto, byPort.Comment = ruleset.TCP, "outbound port is included, whatever the address"
	rules = append(rules, g.onPorts("outbound.ports", g.Outbound.Ports, byPort)...)
	selected.Comment = "outbound connection"
	return append(rules, g.onPrefixes("outbound.cidrs", g.Outbound.CIDRs, selected)...)
}

// dnsProtos are the protocols of DNS queries that are captured.
func (g *generator) dnsProtos() []ruleset.Proto {
	if g.DNS.UDPOnly {
		return []ruleset.Proto{ruleset.UDP}
	}
	return []ruleset.Proto{ruleset.TCP, ruleset.UDP}
}

// dnsTarget receives the family's DNS queries, if they are captured.
func (g *generator) dnsTarget() (ruleset.Target, bool) {
	if len(g.DNS.To) == 0 {
		return ruleset.Target{Action: ruleset.ActionRedirect, Port: g.DNS.Port}, g.DNS.Enabled()
	}
	for _, to := range g.DNS.To {
		if ruleset.FamilyOf(to.Addr()) == g.family {
			return ruleset.Target{Action: ruleset.ActionDNAT, To: to}, g.DNS.Enabled()
		}
	}
	return ruleset.Target{}, false
}

// dnsJump jumps to the capture of DNS queries. It passes queries over TCP if only
// UDP is captured and they do not count as outbound connections either.
func (g *generator) dnsJump() []ruleset.Rule {
	rules := []ruleset.Rule{g.jump(chainDNS)}
	if g.DNS.UDPOnly && !g.DNS.TCPOutbound {
		rules = append(rules, g.onPrefixes("dns.servers", g.DNS.Servers, ruleset.Rule{
			Proto: ruleset.TCP, DstPorts: port53, Target: returns, Comment: "look-up over TCP",
		})...)
	}
	return rules
}

// natDNS redirects DNS queries of the application, or of everyone.
func (g *generator) natDNS() []ruleset.Rule {
	target, ok := g.dnsTarget()
	if !ok {
		return nil
	}
	comment := "application's look-up"
	if g.DNS.Everyone {
		comment = "look-up"
	}
	var rules []ruleset.Rule
	for _, proto := range g.dnsProtos() {
		look := ruleset.Rule{
			Proto: proto, DstPorts: port53, Target: target, Comment: comment,
		}
		if g.byMark() {
			g.notWithinPod(&look)
		}
		rules = append(rules, g.onPrefixes("dns.servers", g.DNS.Servers, look)...)
	}
	return rules
}

// hasZones reports whether DNS queries are kept apart; see zones.
func (g *generator) hasZones() bool {
	passed := !g.DNS.Everyone && g.Outbound.ExcludePorts.Contains(dnsPort)
	return g.DNS.Enabled() && len(g.DNS.To) == 0 && !g.DNS.OneZone && !passed && (g.DNS.Servers.All() || len(g.DNS.Servers.Family(g.family)) > 0)
}

// zones keeps the application's redirected DNS queries, and the proxy's answers to them, apart from all other queries: the
// proxy may ask the same server from the same port at the same time. All others stay in the zone of everything else, where
// the answer finds its query also if the pod translated the address of who asked: that of an inner container, or of a
// virtual machine. Where queries go to another resolver, the proxy makes none of its own.
func (g *generator) zones() {
	app := ruleset.Target{Action: ruleset.ActionZone, Zone: g.Names.AppZone}
	query := ruleset.Rule{Proto: ruleset.UDP, DstPorts: port53, Target: app, Comment: "application's question"}
	answer := ruleset.Rule{
		Proto: ruleset.UDP, SrcPorts: ruleset.MatchPorts(ruleset.Port(g.DNS.Port)), Target: app, Comment: "proxy's answer to the application",
	}
	var prerouting, output []ruleset.Rule
	if g.byMark() {
		answer.Out = loopback // by its port alone: a proxy need not mark what nothing redirects
		output = append(output, answer)
		g.notWithinPod(&query)
	} else {
		prerouting = g.virtualZones()
		g.owners(&output, func(o ruleset.OwnerMatch) {
			answer.Owner = []ruleset.OwnerMatch{o}
			output = append(output, answer, ruleset.Rule{
				Proto: ruleset.UDP, DstPorts: port53, Owner: answer.Owner, Target: returns, Comment: "proxy's question",
			})
		})
	}
	if !g.DNS.Everyone {
		output = append(append(output, g.excludedInterfaces(false)...), g.exclusions(g.queryExclusions())...)
	}
	g.table(ruleset.Raw,
		section{ruleset.Prerouting, prerouting},
		section{ruleset.Output, append(output, g.onPrefixes("dns.servers", g.DNS.Servers, query)...)},
	)
}

// queryExclusions are those that pass DNS queries over UDP.
func (g *generator) queryExclusions() []Exclusion {
	var queries []Exclusion
	for _, e := range g.Outbound.Exclude {
		if e.Protocol != TCP && e.Ports.Contains(dnsPort) {
			e.Protocol, e.Ports = UDP, Ports(dnsPort)
			queries = append(queries, e)
		}
	}
	return queries
}
