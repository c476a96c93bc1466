package redirect

import "github.com/meshcni/meshcni/redirect/ruleset"

// mangle holds transparent interception and the drop of invalid packets.
//
// TPROXY gives a packet to the proxy's listener without a change, marked so
// that the policy route keeps it on this host. Two marks are in play:
//
//	inbound mark: on its way to the listener. The proxy's own connections to
//	    the application carry it too (SO_MARK), with the client's address as
//	    their source, so that the application's replies, marked again from the
//	    connection, come back to the proxy instead of leaving by eth0.
//	hairpin mark: from the proxy to this very pod by a service's address. Of
//	    what arrives by lo only this is inbound traffic.
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
		isInbound := ruleset.Mark(g.Names.InboundMark)
		if inbound = g.tproxyInbound(); len(inbound) > 0 {
			prerouting = append(prerouting, ruleset.Rule{Proto: ruleset.TCP, Target: g.to(chainInbound)})
			divert = []ruleset.Rule{
				{Target: ruleset.ToMark(g.Names.InboundMark)},
				{Target: accepts},
			}
			target = []ruleset.Rule{{
				Dst: ruleset.NotPrefix(g.localhost()), Proto: ruleset.TCP,
				Target: ruleset.TProxyTo(g.Proxy.InboundPort, g.Names.InboundMark),
			}}
		}
		prerouting = append(prerouting, ruleset.Rule{
			Proto: ruleset.TCP, Mark: isInbound, Target: ruleset.Target{Action: ruleset.SaveMark},
			Comment: "proxy to application with the client's address: remember it for the replies",
		})
		output = g.tproxyOutput()
	}
	g.table(ruleset.Mangle,
		section{ruleset.Prerouting, prerouting},
		section{ruleset.Output, output},
		section{chainInbound, inbound},
		section{chainDivert, divert},
		section{chainTProxy, target},
	)
}

func (g *generator) tproxyInbound() []ruleset.Rule {
	if g.Inbound.Ports.Empty() {
		return nil
	}
	rules := []ruleset.Rule{{
		Proto: ruleset.TCP, Mark: ruleset.Mark(g.Names.InboundMark), Target: returns, Comment: "proxy to application",
	}}
	if src, ok := g.passSource(); ok {
		rules = append(rules, ruleset.Rule{
			Src: ruleset.Prefix(src), In: loopback, Proto: ruleset.TCP, Target: returns, Comment: "proxy to application",
		})
	}
	rules = append(rules, ruleset.Rule{
		In: loopback, Proto: ruleset.TCP, Mark: ruleset.NotMark(g.Names.HairpinMark), Target: returns, Comment: "application to its own pod",
	})
	rules = append(rules, g.excludedSources()...)
	rules = append(rules, g.tunnel()...)
	if g.Inbound.Ports.All() {
		rules = append(rules, onPorts(g.Inbound.ExcludePorts, ruleset.Rule{
			Proto: ruleset.TCP, Target: returns, Comment: "inbound port is excluded",
		})...)
	}
	rules = append(rules, onPorts(g.Inbound.Ports, ruleset.Rule{
		Proto: ruleset.TCP, States: ruleset.StateRelated | ruleset.StateEstablished,
		Target: g.to(chainDivert), Comment: "known connection: its socket has it",
	})...)
	return append(rules, onPorts(g.Inbound.Ports, ruleset.Rule{
		Proto: ruleset.TCP, Target: g.to(chainTProxy), Comment: "inbound connection",
	})...)
}

func (g *generator) tproxyOutput() []ruleset.Rule {
	rules := g.excludedInterfaces(false)
	isInbound := ruleset.Mark(g.Names.InboundMark)
	rules = append(rules, ruleset.Rule{
		Out: loopback, Proto: ruleset.TCP, Mark: isInbound, Target: returns, Comment: "proxy to application",
	})
	for _, o := range g.owners() {
		if g.Loopback != LoopbackHairpin {
			break
		}
		rules = append(rules, ruleset.Rule{
			Dst: ruleset.NotPrefix(g.localhost()), Out: loopback, Proto: ruleset.TCP,
			Owner:  []ruleset.OwnerMatch{o},
			Target: ruleset.ToMark(g.Names.HairpinMark), Comment: "proxy to this very pod, by a service's address",
		})
	}
	return append(rules, ruleset.Rule{
		Proto: ruleset.TCP, ConnMark: isInbound, Target: ruleset.Target{Action: ruleset.RestoreMark},
		Comment: "application's reply: back to the proxy",
	})
}

// refuse drops the connections that capture would redirect, in a family that
// is to carry none past the mesh. It stands in mangle, since the nat table sees
// only first packets and does not take DROP.
func (g *generator) refuse() *ruleset.Program {
	marks, replies := g.markMangle()
	prerouting := append(marks, g.excludedInterfaces(true)...)
	prerouting = append(prerouting,
		ruleset.Rule{In: loopback, Target: returns, Comment: "within the pod"},
		ruleset.Rule{States: ruleset.StateRelated | ruleset.StateEstablished, Target: returns, Comment: "reply to what was let out"},
	)
	prerouting = append(prerouting, g.excludedSources()...)
	prerouting = append(prerouting, g.tunnel()...)
	if g.Inbound.Ports.All() {
		prerouting = append(prerouting, onPorts(g.Inbound.ExcludePorts, ruleset.Rule{
			Proto: ruleset.TCP, Target: returns, Comment: "inbound port is excluded",
		})...)
	}
	prerouting = append(prerouting, onPorts(g.Inbound.Ports, ruleset.Rule{
		Proto: ruleset.TCP, Target: drops, Comment: "inbound connection past the mesh",
	})...)

	output := append(replies, g.excludedInterfaces(false)...)
	output = append(output, g.excludedOutboundPorts()...)
	output = append(output, g.exclusions()...)
	output = append(output, g.marked("proxy")...)
	output = append(output,
		ruleset.Rule{Out: loopback, Target: returns, Comment: "within the pod"},
		ruleset.Rule{States: ruleset.StateRelated | ruleset.StateEstablished, Target: returns, Comment: "reply to what was let in"},
	)
	for _, o := range g.owners() {
		output = append(output, ruleset.Rule{Owner: []ruleset.OwnerMatch{o}, Target: returns, Comment: "proxy"})
	}
	output = append(output, g.groupFilter()...)
	output = append(output, g.outboundSelection(ruleset.Rule{Proto: ruleset.TCP, Target: drops})...)
	g.table(ruleset.Mangle, section{ruleset.Prerouting, prerouting}, section{ruleset.Output, output})
	return g.program()
}
