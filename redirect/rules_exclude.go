package redirect

import (
	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// maxComment is the length of the longest comment of a rule, in bytes. Each rule
// has its own in JSON, so a list in it would be there as often as it has
// elements. nft takes 127 bytes at most.
const maxComment = 120

// logs is the rule that has the kernel log what enters a hook.
func (g *generator) logs(hook string) []ruleset.Rule {
	if !g.Log.Enabled {
		return nil
	}
	return []ruleset.Rule{{
		Target: ruleset.LogAs(g.Names.ChainPrefix+hook+": ", g.Log.Level), Comment: "log each connection",
	}}
}

// exclusions makes one rule of each combination of what an exclusion lists.
func (g *generator) exclusions() []ruleset.Rule {
	var rules []ruleset.Rule
	for _, e := range g.Outbound.Exclude {
		base := ruleset.Rule{Proto: e.Protocol.proto(), Target: returns, Comment: brief.Text("excluded: "+e.String(), maxComment)}
		for _, r := range g.onPrefixes(e.CIDRs, base) {
			if len(e.UIDs) == 0 {
				rules = append(rules, onPorts(e.Ports, r)...)
			}
			for _, ids := range e.UIDs {
				r.Owner = []ruleset.OwnerMatch{{Kind: ruleset.UID, First: ids.First, Last: ids.Last}}
				rules = append(rules, onPorts(e.Ports, r)...)
			}
		}
	}
	return rules
}

// excludedSources lets clients through to the application.
func (g *generator) excludedSources() []ruleset.Rule {
	var rules []ruleset.Rule
	for _, p := range g.Inbound.ExcludeSources.Family(g.family) {
		rules = append(rules, ruleset.Rule{Src: ruleset.Prefix(p), Target: returns, Comment: "client is excluded"})
	}
	return rules
}

// virtualNetworks treats what comes from behind an interface as outbound,
// unless it is for a neighbour there.
func (g *generator) virtualNetworks() []ruleset.Rule {
	var rules []ruleset.Rule
	for _, n := range g.VirtualNetworks {
		if ruleset.FamilyOf(n.Local.Addr()) != g.family {
			continue
		}
		in := ruleset.InterfaceMatch{Name: n.Interface}
		if g.DNS.Enabled() && len(g.DNS.To) == 0 {
			rules = append(rules, ruleset.Rule{
				In: in, Proto: ruleset.UDP, DstPorts: ruleset.Ports(ruleset.Port(dnsPort)),
				Target: ruleset.RedirectTo(g.DNS.Port), Comment: "look-up from a virtual network",
			})
		}
		rules = append(rules, ruleset.Rule{
			Dst: ruleset.NotPrefix(n.Local), In: in, Proto: ruleset.TCP,
			Target: g.to(chainRedirect), Comment: "outbound traffic of a virtual network",
		})
	}
	return rules
}

// virtualZones puts the DNS queries of virtual networks where the proxy's answers
// are, so that these find their way back.
func (g *generator) virtualZones() []ruleset.Rule {
	var rules []ruleset.Rule
	for _, n := range g.VirtualNetworks {
		if ruleset.FamilyOf(n.Local.Addr()) == g.family {
			rules = append(rules, ruleset.Rule{
				In: ruleset.InterfaceMatch{Name: n.Interface}, Proto: ruleset.UDP, DstPorts: ruleset.Ports(ruleset.Port(dnsPort)),
				Target: ruleset.InZone(g.Names.AppZone), Comment: "question from a virtual network",
			})
		}
	}
	return rules
}

// byMark reports whether the proxy is known by the mark of its packets.
func (g *generator) byMark() bool { return !g.Proxy.Mark.IsZero() }

// marked is the rule that lets the proxy's marked packets through.
func (g *generator) marked(comment string) []ruleset.Rule {
	if !g.byMark() {
		return nil
	}
	return []ruleset.Rule{{Mark: g.Proxy.Mark.match(false), Target: returns, Comment: comment}}
}

// replyMark is the mark that routes the application's replies to a proxy that
// is known by its mark.
func (g *generator) replyMark() Mark { return Mark{g.Names.InboundMark, g.Names.MarkMask} }

// notWithinPod narrows the rule for DNS queries of a proxy known by its mark, which
// comes before those that let connections within the pod pass: whoever asks a
// resolver of his own over UDP gets it, and over TCP when it is on localhost.
func (g *generator) notWithinPod(r *ruleset.Rule) {
	if r.Proto == ruleset.UDP {
		r.Out = ruleset.InterfaceMatch{Name: loopback.Name, Not: true}
	} else {
		r.Dst = ruleset.NotPrefix(g.localhost())
	}
}

// markMangle keeps the two ends of a connection together that a proxy known by
// its mark makes to the application with the client's address: the mark of its
// first packet is remembered with the connection, and put on the replies, which
// the policy route then keeps in the pod instead of sending them to the client.
// Nothing that the pod excludes from capture is an exception: such connections
// also carry what arrived at the proxy's own tunnel listener.
func (g *generator) markMangle() (prerouting, output []ruleset.Rule) {
	if !g.byMark() {
		return nil, nil
	}
	prerouting = []ruleset.Rule{{
		Mark:    g.Proxy.Mark.match(false),
		Target:  ruleset.ToConnMark(g.Names.InboundMark, fullMask(g.Names.MarkMask)),
		Comment: "proxy to application with the client's address: remember it for the replies",
	}}
	output = []ruleset.Rule{{
		ConnMark: g.replyMark().match(false), Target: ruleset.Target{Action: ruleset.RestoreMark},
		Comment: "application's reply: back to the proxy",
	}}
	return prerouting, output
}

// markZones is what [generator.zones] makes for a proxy known by its mark,
// whose answers to the application need no zone of their own.
func (g *generator) markZones(queries []ruleset.Rule) (output, prerouting []ruleset.Rule) {
	proxy := ruleset.InZone(g.Names.ProxyZone)
	for _, q := range queries {
		output = append(output, ruleset.Rule{
			Dst: q.Dst, Proto: ruleset.UDP, DstPorts: q.DstPorts, Mark: g.Proxy.Mark.match(false),
			Target: proxy, Comment: "proxy's question",
		})
		prerouting = append(prerouting, ruleset.Rule{
			Src: q.Dst, Proto: ruleset.UDP, SrcPorts: q.DstPorts, Mark: g.Proxy.Mark.match(true),
			Target: proxy, Comment: "server's answer to the proxy",
		})
	}
	return output, prerouting
}
