package ambient

import (
	"net/netip"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// istioCNI is the name of Istio's own node agent, to which a node's pods can be given; see [dialect.NodeProxy].
const istioCNI = "istio-cni"

// The names that Istio's own node agent gives its rules in a pod: by iptables two chains, of which we have the name of the
// second too, and by nftables three tables. Source: cni/pkg/iptables and cni/pkg/nftables of Istio 1.32.
const (
	agentPrerouting = "ISTIO_PRERT"
	agentOutput     = "ISTIO_OUTPUT"
)

var agentTable = map[ruleset.Table]string{
	ruleset.Raw: "istio-ambient-raw", ruleset.Mangle: "istio-ambient-mangle", ruleset.NAT: "istio-ambient-nat",
}

func agentTables() []string {
	return []string{agentTable[ruleset.Raw], agentTable[ruleset.Mangle], agentTable[ruleset.NAT]}
}

// AgentLayout names the nftables tables and chains in which Istio's node agent keeps [AgentRuleset], if it uses native
// nftables (global.nativeNftables in Istio's charts). It is for apply.HandOver.
func AgentLayout() ruleset.Layout {
	return ruleset.Layout{Tables: agentTable, Chains: map[string]string{
		ruleset.Prerouting: "prerouting", ruleset.Output: "output",
		agentPrerouting: "istio-prerouting", agentOutput: "istio-output",
	}}
}

// AgentRuleset returns the rules that Istio's node agent has for a pod with the settings of r, which this dialect read: the
// same packets end in the same place, and it takes the rules for its own. It is for giving a node's pods back to that agent;
// see apply.HandOver. A family that r does not capture has no rules.
func AgentRuleset(r redirect.Redirect) ruleset.Ruleset {
	var rs ruleset.Ruleset
	for _, f := range ruleset.Families {
		p := &ruleset.FamilyRuleset{Family: f, Owner: r.Names.Owner()}
		if r.Family(f) == redirect.FamilyCapture {
			p.Chains, p.Routing = agentRules{r, f}.chains(), &p.Owner.Routing
		}
		rs.Set(p)
	}
	return rs
}

// agentRules makes the agent's rules for one family.
type agentRules struct {
	redirect.Redirect
	family ruleset.Family
}

var tunnel = ruleset.PortMatch{Ranges: []ruleset.PortRange{ruleset.Port(TunnelPort)}, Not: true}

const port53 = 53

func (a agentRules) chains() []ruleset.Chain {
	var all []ruleset.Chain
	if a.DNS.Enabled() {
		zone := ruleset.Target{Action: ruleset.ActionZone, Zone: a.Names.ProxyZone}
		all = append(all, agentChains(ruleset.Raw,
			[]ruleset.Rule{{Proto: ruleset.UDP, SrcPorts: ruleset.MatchPorts(ruleset.Port(port53)), Mark: a.proxy(true), MarkFirst: true, Target: zone}},
			[]ruleset.Rule{{Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(port53)), Mark: a.proxy(false), MarkFirst: true, Target: zone}},
		)...)
	}
	all = append(all, agentChains(ruleset.Mangle,
		[]ruleset.Rule{{Mark: a.proxy(false), Target: ruleset.Target{Action: ruleset.ActionSetConnMark, Mark: replyMark, Mask: markMask}}},
		[]ruleset.Rule{{ConnMark: reply, Target: ruleset.Target{Action: ruleset.ActionRestoreMark}}},
	)...)
	return append(all, agentChains(ruleset.NAT, a.prerouting(), a.output())...)
}

// agentChains are the chains of one table, each with the jump that leads to it.
func agentChains(t ruleset.Table, prerouting, output []ruleset.Rule) []ruleset.Chain {
	to := func(chain string) []ruleset.Rule {
		return []ruleset.Rule{{Target: ruleset.Target{Action: ruleset.ActionJump, Chain: chain}}}
	}
	all := []ruleset.Chain{
		{Table: t, Name: ruleset.Prerouting, Rules: to(agentPrerouting)}, {Table: t, Name: ruleset.Output, Rules: to(agentOutput)},
	}
	// It makes the chains and jumps also where a chain stays empty.
	return append(all, ruleset.Chain{Table: t, Name: agentPrerouting, Rules: prerouting}, ruleset.Chain{Table: t, Name: agentOutput, Rules: output})
}

var reply = ruleset.MarkMatch{Value: replyMark, Mask: markMask}

func (a agentRules) proxy(not bool) ruleset.MarkMatch {
	return ruleset.MarkMatch{Value: ProxyMark, Mask: markMask, Not: not}
}

func (a agentRules) notLocalhost() ruleset.PrefixMatch {
	addr := netip.IPv6Loopback()
	if a.family == ruleset.IPv4 {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return ruleset.PrefixMatch{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Not: true}
}

func redirectTo(port uint16) ruleset.Target {
	return ruleset.Target{Action: ruleset.ActionRedirect, Port: port}
}

var accepts = ruleset.Target{Action: ruleset.ActionAccept}

func (a agentRules) prerouting() (rules []ruleset.Rule) {
	for _, name := range a.VirtualInterfaces {
		in := ruleset.InterfaceMatch{Name: name}
		rules = append(rules,
			ruleset.Rule{In: in, Proto: ruleset.TCP, Target: redirectTo(OutboundPort)},
			ruleset.Rule{In: in, Proto: ruleset.TCP, Target: ruleset.Target{Action: ruleset.ActionReturn}})
	}
	if a.Inbound.Ports.Empty() {
		return rules
	}
	for _, p := range a.Inbound.ProbeSources.Family(a.family) {
		rules = append(rules, ruleset.Rule{Src: ruleset.MatchPrefix(p), Proto: ruleset.TCP, Target: accepts})
	}
	return append(rules, ruleset.Rule{
		Dst: a.notLocalhost(), Proto: ruleset.TCP, DstPorts: tunnel, Mark: a.proxy(true), Target: redirectTo(InboundPort),
	})
}

func (a agentRules) output() (rules []ruleset.Rule) {
	for _, e := range a.Outbound.Exclude {
		for _, p := range e.CIDRs.Family(a.family) {
			rules = append(rules, ruleset.Rule{Dst: ruleset.MatchPrefix(p), Proto: ruleset.TCP, Target: accepts})
		}
	}
	if a.DNS.Enabled() {
		ports, to := ruleset.MatchPorts(ruleset.Port(port53)), redirectTo(dnsPort)
		rules = append(rules,
			ruleset.Rule{Out: ruleset.InterfaceMatch{Name: "lo", Not: true}, Proto: ruleset.UDP, DstPorts: ports, Mark: a.proxy(true), MarkFirst: true, Target: to},
			ruleset.Rule{Dst: a.notLocalhost(), Proto: ruleset.TCP, DstPorts: ports, Mark: a.proxy(true), Target: to})
	}
	return append(rules,
		ruleset.Rule{Proto: ruleset.TCP, Mark: reply, Target: accepts},
		ruleset.Rule{Dst: a.notLocalhost(), Out: ruleset.InterfaceMatch{Name: "lo"}, Target: accepts},
		ruleset.Rule{Dst: a.notLocalhost(), Proto: ruleset.TCP, Mark: a.proxy(true), Target: redirectTo(OutboundPort)})
}
