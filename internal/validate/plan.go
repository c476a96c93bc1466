package validate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// surroundings are the inputs of planning besides the rules.
type surroundings struct {
	// identities are those in whose name sockets can be opened, own first.
	identities []Identity
	// addrs are the namespace's own addresses of both families, loopback
	// included, link-local ones left out: they need a zone.
	addrs []netip.Addr
	// route returns how a packet would leave, and reports false when it cannot.
	route func(dst netip.Addr) (src netip.Addr, by string, ok bool)
}

// trial is a step and its sending end. A step that is "untested" from the start is
// never made; all others end with an outcome.
type trial struct {
	Step
	// exempt trials must not arrive at port; the others must.
	exempt bool
	port   uint16

	open     bool // fd is
	fd       int
	local    netip.AddrPort
	question []byte
	// connected is the time at which somebody accepted the connection; zero before.
	connected time.Time
}

// candidate is a packet that might show an aspect.
type candidate struct {
	proto ruleset.Proto
	dst   netip.AddrPort
}

type planner struct {
	redirect redirect.Redirect
	rules    ruleset.Ruleset
	probe    uint16
	surroundings
}

const dnsPort = 53

// documentation are addresses that belong to nobody (RFC 5737, RFC 3849).
var documentation = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("203.0.113.1"),
	netip.MustParseAddr("2001:db8::1"),
}

func (p *planner) plan() []*trial {
	var trials []*trial
	for _, f := range ruleset.Families {
		why := ""
		switch {
		case p.redirect.Family(f) == redirect.FamilyPass:
			why = "the family is not captured: its connections bypass the mesh"
		case p.redirect.Family(f) == redirect.FamilyDrop:
			why = "the family is closed, not captured"
		case !slices.ContainsFunc(p.addrs, func(a netip.Addr) bool { return ruleset.FamilyOf(a) == f }):
			why = "the network namespace has no address of the family"
		}
		if why != "" {
			trials = append(trials, notTried(f, wholeFamily, why))
			continue
		}
		trials = append(trials, p.family(f)...)
	}
	return trials
}

func notTried(f ruleset.Family, aspect, why string) *trial {
	return &trial{Step: Step{Family: f, Aspect: aspect, Outcome: untested, Detail: why}}
}

func (p *planner) family(f ruleset.Family) []*trial {
	proxy := p.redirect.Proxy
	in := p.find(f, inbound, netip.AddrPortFrom(netip.Addr{}, proxy.InboundPort), p.toSelf(f, ruleset.TCP, p.probe))
	if in.Outcome == untested && f == ruleset.IPv6 && !slices.ContainsFunc(p.addrs, func(a netip.Addr) bool { return a.Is6() && !a.IsLoopback() }) {
		in.Detail = "the network namespace has no address of the family but ::1, and calls to that pass"
	}
	trials := []*trial{in, p.find(f, outbound, netip.AddrPortFrom(netip.Addr{}, proxy.OutboundPort), p.toOthers(f))}
	if !p.redirect.DNS.Enabled() {
		return trials
	}
	to, why := p.resolver(f)
	if why != "" {
		return append(trials, notTried(f, dnsOverUDP, why), notTried(f, dnsOverTCP, why))
	}
	udp := p.find(f, dnsOverUDP, to, p.lookups(f, ruleset.UDP))
	tcp := p.find(f, dnsOverTCP, to, p.lookups(f, ruleset.TCP))
	trials = append(trials, udp, tcp)
	if udp.Outcome == untested && tcp.Outcome == untested {
		trials = append(trials, p.exemption(f))
	}
	return trials
}

// resolver returns where look-ups of the family go: to a port of the proxy's, or to an address and port that DNS.To names. It says why they cannot
// be seen, if there is no listening there.
func (p *planner) resolver(f ruleset.Family) (to netip.AddrPort, why string) {
	if len(p.redirect.DNS.To) == 0 {
		return netip.AddrPortFrom(netip.Addr{}, p.redirect.DNS.Port), ""
	}
	for _, to := range p.redirect.DNS.To {
		switch {
		case ruleset.FamilyOf(to.Addr()) != f:
			continue
		case to.Addr() != loopback(f):
			return to, fmt.Sprintf("look-ups go to %s, where this program cannot listen", to)
		}
		return netip.AddrPortFrom(to.Addr(), cmp.Or(to.Port(), dnsPort)), ""
	}
	return to, "look-ups of the family are not captured"
}

func loopback(f ruleset.Family) netip.Addr {
	if f == ruleset.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// find returns a trial with the first candidate that the rules send to a port, of this host if there is no address, for any of the identities.
func (p *planner) find(f ruleset.Family, aspect string, to netip.AddrPort, candidates []candidate) *trial {
	port := to.Port()
	why := "no address to send to"
	for _, id := range p.identities {
		for _, c := range candidates {
			r, err := p.trace(p.rules, id, c)
			switch {
			case err != nil:
				why = err.Error()
			case r.Verdict == trace.Redirect && r.ToPort == port && r.ToAddr == to.Addr():
				return &trial{port: port, Step: Step{
					Family: f, Aspect: aspect, Proto: c.proto.String(), Destination: c.dst, As: &id, WantPort: port,
					Rule: wanted(r),
				}}
			default:
				why = fmt.Sprintf("cannot be seen as %s: %s", id, r.Reason)
			}
		}
	}
	return notTried(f, aspect, why)
}

// elsewhere says who could try something in this namespace, where nothing that the process itself can send would tell.
func (p *planner) elsewhere() string {
	r := p.redirect
	own := "this process"
	if len(p.identities) > 0 {
		own = "user " + p.identities[0].String()
		if slices.Contains(r.Proxy.UIDs, p.identities[0].UID) || slices.Contains(r.Proxy.GIDs, p.identities[0].GID) {
			own += ", the proxy's own,"
		}
	}
	var who []string
	for i, id := range []Identity{proxyOf(r, Identity{nobody, nobody}), appOf(r)} {
		there := *p
		there.identities = []Identity{id}
		if slices.ContainsFunc(there.plan(), func(t *trial) bool { return t.Outcome == "" }) {
			who = append(who, []string{fmt.Sprintf("the proxy's user (%s)", id), "a user who is not the proxy's, such as the application's"}[i])
		}
	}
	if len(who) > 0 {
		return fmt.Sprintf("what %s sends shows nothing: run it as %s", own, strings.Join(who, " or "))
	}
	return fmt.Sprintf("what %s sends shows nothing, and nobody else's would: the namespace has no route out of it", own)
}

// proxyOf is the identity of the proxy, as far as it has one.
func proxyOf(r redirect.Redirect, otherwise Identity) Identity {
	if ids := r.Proxy.UIDs; len(ids) > 0 {
		otherwise.UID = ids[0]
	}
	if ids := r.Proxy.GIDs; len(ids) > 0 {
		otherwise.GID = ids[0]
	}
	return otherwise
}

// appOf is an identity that is not the proxy's.
func appOf(r redirect.Redirect) Identity {
	app := Identity{nobody, nobody}
	for slices.Contains(r.Proxy.UIDs, app.UID) {
		app.UID--
	}
	if groups := r.Outbound.OwnerGroups; len(groups) > 0 {
		app.GID = groups[0]
	}
	for slices.Contains(r.Proxy.GIDs, app.GID) || slices.Contains(r.Outbound.ExcludeOwnerGroups, app.GID) {
		app.GID--
	}
	return app
}

// nobody is the overflow id, which owns nothing (sysctl kernel.overflowuid).
const nobody = 65534

// wanted names the rule that decided and the one that does it.
func wanted(r trace.Result) string {
	switch n := len(r.Path); {
	case n == 0:
		return ""
	case n == 1 || r.Verdict != trace.Redirect:
		return r.Path[n-1]
	default:
		at := slices.IndexFunc(r.Steps, func(s trace.Step) bool { return s.Rule.Target.Action == ruleset.ActionRedirect })
		if at < 1 {
			return r.Path[n-1]
		}
		return r.Path[at-1] + " -> " + r.Path[at]
	}
}

func (p *planner) trace(rules ruleset.Ruleset, id Identity, c candidate) (trace.Result, error) {
	src, by, ok := p.route(c.dst.Addr())
	if !ok {
		return trace.Result{}, fmt.Errorf("no route to %s", c.dst.Addr())
	}
	return trace.Trace(rules, trace.Packet{
		Direction: trace.Out, Proto: c.proto, Src: netip.AddrPortFrom(src, 0), Dst: c.dst,
		UID: id.UID, GID: id.GID, OutInterface: by, PodAddrs: p.addrs,
	})
}

// toSelf returns destinations in the pod. The proxy's own source addresses come first, with 127.0.0.6, which works
// without any interface. Plain loopback addresses come last: rules leave them alone, except for DNS queries.
func (p *planner) toSelf(f ruleset.Family, proto ruleset.Proto, port uint16) []candidate {
	var out []candidate
	add := func(a netip.Addr) {
		if ruleset.FamilyOf(a) == f {
			out = append(out, candidate{proto, netip.AddrPortFrom(a, port)})
		}
	}
	for _, a := range append(slices.Clone(p.redirect.Proxy.PassSources), netip.AddrFrom4([4]byte{127, 0, 0, 6})) {
		if _, by, ok := p.route(a); ok && by == "lo" {
			add(a)
		}
	}
	for _, loopback := range []bool{false, true} {
		for _, a := range p.addrs {
			if a.IsLoopback() == loopback {
				add(a)
			}
		}
	}
	return out
}

// toOthers returns destinations outside the pod. Of an included range it takes the
// first address, which in a subnet belongs to nobody, and the one after it.
func (p *planner) toOthers(f ruleset.Family) []candidate {
	var addrs []netip.Addr
	for _, a := range documentation {
		if ruleset.FamilyOf(a) == f {
			addrs = append(addrs, a)
		}
	}
	for _, prefix := range p.redirect.Outbound.CIDRs.Family(f) {
		addrs = append(addrs, prefix.Addr(), prefix.Addr().Next())
	}
	ports := []uint16{p.probe}
	for _, r := range p.redirect.Outbound.Ports.Ranges() {
		ports = append(ports, r.First)
	}
	var out []candidate
	for _, port := range ports {
		for _, a := range addrs {
			if a.IsValid() {
				out = append(out, candidate{ruleset.TCP, netip.AddrPortFrom(a, port)})
			}
		}
	}
	return out
}

// lookups returns DNS queries. The pod itself is asked first, so that nothing leaves
// it where queries to all servers are captured.
func (p *planner) lookups(f ruleset.Family, proto ruleset.Proto) []candidate {
	out := p.toSelf(f, proto, dnsPort)
	for _, prefix := range p.redirect.DNS.Servers.Family(f) {
		out = append(out, candidate{proto, netip.AddrPortFrom(prefix.Addr(), dnsPort)})
	}
	return out
}

// exemption is the only sign of DNS capture that the proxy's user sees: a connection
// to port 53 of the pod itself is not redirected. Without capture it would be.
func (p *planner) exemption(f ruleset.Family) *trial {
	without := p.redirect.Clone()
	without.DNS = redirect.DNS{}
	rules, err := without.Ruleset()
	if err != nil {
		return notTried(f, dnsExemption, err.Error())
	}
	port := p.redirect.Proxy.InboundPort
	for _, id := range p.identities {
		for _, c := range p.toSelf(f, ruleset.TCP, dnsPort) {
			now, err := p.trace(p.rules, id, c)
			if err != nil || now.Verdict != trace.Pass {
				continue
			}
			if then, err := p.trace(rules, id, c); err == nil && then.Verdict == trace.Redirect && then.ToPort == port {
				return &trial{port: port, exempt: true, Step: Step{
					Family: f, Aspect: dnsExemption, Proto: c.proto.String(), Destination: c.dst, As: &id, Rule: wanted(now),
				}}
			}
		}
	}
	return notTried(f, dnsExemption, "nothing that can be sent from here tells")
}
