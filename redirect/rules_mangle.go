package redirect

import (
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// mangle does transparent interception and drops invalid packets.
//
// TPROXY gives a packet to the proxy's listener unchanged, and marks it so that the
// policy route keeps it on this host. There are two marks:
//
//	inbound mark: on packets to the listener, and on the proxy's own connections to
//	    the application (SO_MARK), whose source is the client's address. The
//	    connection's mark is put on the application's replies, which therefore
//	    come back to the proxy instead of leaving by eth0.
//	hairpin mark: on packets from the proxy to its own pod by a service's address.
//	    Of what arrives by lo, only these are inbound traffic.
func (g *generator) mangle() {
	tproxy := g.Mode == ModeTProxy
	var prerouting, inbound, output, divert, target []ruleset.Rule
	if tproxy {
		prerouting = g.excludedInterfaces(true)
	}
	if g.DropInvalid {
		prerouting = append(prerouting, ruleset.Rule{
			States: ruleset.StateInvalid, Target: drops, Comment: "out-of-window packet, which would reset a connection",
		})
	}
	marks, replies := g.markMangle()
	prerouting, output = append(prerouting, marks...), append(output, replies...)
	if tproxy {
		isInbound := Mark{Value: g.Names.InboundMark}.match(false)
		if inbound = g.tproxyInbound(); len(inbound) > 0 {
			prerouting = append(prerouting, ruleset.Rule{Proto: ruleset.TCP, Target: g.to(chainInbound)})
			divert = []ruleset.Rule{
				{Target: ruleset.Target{Action: ruleset.ActionSetMark, Mark: g.Names.InboundMark}},
				{Target: accepts},
			}
			target = []ruleset.Rule{{
				Dst: ruleset.PrefixMatch{Prefix: g.localhost(), Not: true}, Proto: ruleset.TCP,
				Target: ruleset.Target{Action: ruleset.ActionTProxy, Port: g.Proxy.InboundPort, Mark: g.Names.InboundMark},
			}}
		}
		prerouting = append(prerouting, ruleset.Rule{
			Proto: ruleset.TCP, Mark: isInbound, Target: ruleset.Target{Action: ruleset.ActionSaveMark},
			Comment: "proxy to application with the client's address: remember it for the replies",
		})
		output = g.tproxyOutput()
	}
	output = append(output, g.dropUDP()...)
	g.table(ruleset.Mangle,
		section{ruleset.Prerouting, prerouting},
		section{ruleset.Output, output},
		section{chainInbound, inbound},
		section{chainDivert, divert},
		section{chainTProxy, target},
	)
}

// dropUDP drops UDP from the application, by the mangle table, since nat refuses DROP. It is last in its chain.
func (g *generator) dropUDP() []ruleset.Rule {
	if g.Outbound.DropUDPPorts.Empty() {
		return nil
	}
	udp := func(r ruleset.Rule, comment string) ruleset.Rule {
		r.Proto, r.Target, r.Comment = ruleset.UDP, returns, comment
		return r
	}
	rules := g.excludedInterfaces(false)
	for _, r := range g.marked("proxy") {
		rules = append(rules, udp(r, r.Comment))
	}
	g.owners(&rules, func(o ruleset.OwnerMatch) {
		rules = append(rules, udp(ruleset.Rule{Owner: []ruleset.OwnerMatch{o}}, "proxy"))
	})
	rules = append(rules,
		udp(ruleset.Rule{Out: loopback}, "within the pod"),
		udp(ruleset.Rule{States: ruleset.StateRelated | ruleset.StateEstablished}, "answer to what was let in"))
	rules = append(rules, g.onPorts("outbound.excludePorts", g.Outbound.ExcludePorts, udp(ruleset.Rule{}, "outbound port is excluded"))...)
	rules = append(rules, g.exclusions(slices.DeleteFunc(slices.Clone(g.Outbound.Exclude), func(e Exclusion) bool { return e.Protocol == TCP }))...)
	rules = append(rules, g.groupFilter()...)
	rules = append(rules, g.onPrefixes("outbound.excludeCIDRs", g.Outbound.ExcludeCIDRs, udp(ruleset.Rule{}, "destination is excluded"))...)
	if _, captured := g.dnsTarget(); captured {
		rules = append(rules, g.onPrefixes("dns.servers", g.DNS.Servers, udp(ruleset.Rule{DstPorts: port53}, "look-up"))...)
	}
	rules = append(rules, g.onPorts("outbound.passUDPPorts", g.Outbound.PassUDPPorts, udp(ruleset.Rule{}, "outbound UDP port passes"))...)
	dropped := udp(ruleset.Rule{}, "outbound UDP past the mesh")
	dropped.Target = drops
	return append(rules, g.onPorts("outbound.dropUDPPorts", g.Outbound.DropUDPPorts, dropped)...)
}

func (g *generator) tproxyInbound() []ruleset.Rule {
	if g.Inbound.Ports.Empty() {
		return nil
	}
	rules := []ruleset.Rule{{
		Proto: ruleset.TCP, Mark: Mark{Value: g.Names.InboundMark}.match(false), Target: returns, Comment: "proxy to application",
	}}
	if src, ok := g.passSource(); ok {
		rules = append(rules, ruleset.Rule{
			Src: ruleset.MatchPrefix(src), In: loopback, Proto: ruleset.TCP, Target: returns, Comment: "proxy to application",
		})
	}
	rules = append(rules, ruleset.Rule{
		In: loopback, Proto: ruleset.TCP, Mark: Mark{Value: g.Names.HairpinMark}.match(true), Target: returns, Comment: "application to its own pod",
	})
	rules = append(rules, g.inboundExceptions()...)
	rules = append(rules, g.onPorts("inbound.ports", g.Inbound.Ports, ruleset.Rule{
		Proto: ruleset.TCP, States: ruleset.StateRelated | ruleset.StateEstablished,
		Target: g.to(chainDivert), Comment: "known connection: its socket has it",
	})...)
	return append(rules, g.onPorts("inbound.ports", g.Inbound.Ports, ruleset.Rule{
		Proto: ruleset.TCP, Target: g.to(chainTProxy), Comment: "inbound connection",
	})...)
}

func (g *generator) tproxyOutput() []ruleset.Rule {
	rules := g.excludedInterfaces(false)
	isInbound := Mark{Value: g.Names.InboundMark}.match(false)
	rules = append(rules, ruleset.Rule{
		Out: loopback, Proto: ruleset.TCP, Mark: isInbound, Target: returns, Comment: "proxy to application",
	})
	if g.Loopback == LoopbackHairpin {
		g.owners(&rules, func(o ruleset.OwnerMatch) {
			rules = append(rules, ruleset.Rule{
				Dst: ruleset.PrefixMatch{Prefix: g.localhost(), Not: true}, Out: loopback, Proto: ruleset.TCP,
				Owner:  []ruleset.OwnerMatch{o},
				Target: ruleset.Target{Action: ruleset.ActionSetMark, Mark: g.Names.HairpinMark}, Comment: "proxy to this very pod, by a service's address",
			})
		})
	}
	return append(rules, ruleset.Rule{
		Proto: ruleset.TCP, ConnMark: isInbound, Target: ruleset.Target{Action: ruleset.ActionRestoreMark},
		Comment: "application's reply: back to the proxy",
	})
}

// refuse drops the connections that capture would redirect. It uses the mangle table,
// because nat sees only first packets and refuses DROP.
func (g *generator) refuse() {
	marks, replies := g.markMangle()
	prerouting := append(marks, g.excludedInterfaces(true)...)
	prerouting = append(prerouting,
		ruleset.Rule{In: loopback, Target: returns, Comment: "within the pod"},
		ruleset.Rule{States: ruleset.StateRelated | ruleset.StateEstablished, Target: returns, Comment: "reply to what was let out"},
	)
	prerouting = append(prerouting, g.inboundExceptions()...)
	prerouting = append(prerouting, g.onPorts("inbound.ports", g.Inbound.Ports, ruleset.Rule{
		Proto: ruleset.TCP, Target: drops, Comment: "inbound connection past the mesh",
	})...)

	output := append(replies, g.excludedInterfaces(false)...)
	output = append(output, g.excludedOutboundPorts()...)
	output = append(output, g.exclusions(g.Outbound.Exclude)...)
	output = append(output, g.marked("proxy")...)
	output = append(output,
		ruleset.Rule{Out: loopback, Target: returns, Comment: "within the pod"},
		ruleset.Rule{States: ruleset.StateRelated | ruleset.StateEstablished, Target: returns, Comment: "reply to what was let in"},
	)
	g.owners(&output, func(o ruleset.OwnerMatch) {
		output = append(output, ruleset.Rule{Owner: []ruleset.OwnerMatch{o}, Target: returns, Comment: "proxy"})
	})
	output = append(output, g.groupFilter()...)
	output = append(output, g.outboundSelection(ruleset.Rule{Proto: ruleset.TCP, Target: drops})...)
	g.table(ruleset.Mangle, section{ruleset.Prerouting, prerouting}, section{ruleset.Output, output})
}
