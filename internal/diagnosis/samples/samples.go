// Package samples makes the packets that stand for a pod's connections: what the application opens, what comes in, a DNS query, and
// what the rules exempt. What becomes of them says what rules do, whoever wrote them.
package samples

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/internal/prefixes"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Kind tells samples apart by the connections that they stand for.
type Kind string

// The kinds.
const (
	// Outbound is a TCP connection of the application's to somebody outside the pod: one that the rules capture, if there is one.
	Outbound Kind = "outbound"
	// Inbound is a TCP connection from outside to the pod, likewise.
	Inbound Kind = "inbound"
	// Query is a DNS query over UDP that the rules capture. There is none if they capture none.
	Query Kind = "query"
	// Exempt is the Outbound sample from a sender that the rules let pass, such as the proxy.
	Exempt Kind = "exempt"
)

// Sample is a packet, and what the rules that it was made from do to it.
type Sample struct {
	Kind   Kind
	Family ruleset.Family
	Packet trace.Packet
	Result trace.Result
	// Unsure is set for a sample that passes if the rules are too many to try all that they tell apart.
	Unsure bool
}

// Captured reports whether the rules redirect or drop the packet.
func (s Sample) Captured() bool { return s.Result.Verdict != trace.Pass }

// Pod is a pod as far as samples depend on it.
type Pod struct {
	// Addrs are its addresses. In a family without one, the pod gets an address that is reserved for documentation.
	Addrs []netip.Addr
	// Interface leads outside; the zero value is "eth0".
	Interface string
}

// Of returns the samples of a pod with these rules, for each family that the rules or the pod's addresses have: one of [Outbound], one
// of [Inbound], and those of the other kinds that there are. If no connection of a kind is captured, the sample of that kind passes.
// The error is that of [trace.Trace].
func Of(rs ruleset.Ruleset, pod Pod) ([]Sample, error) {
	return each(rs, pod, (*maker).samples)
}

// Connections returns the samples of [Of] that are of [Outbound] and [Inbound], which take a few traces where all is captured.
func Connections(rs ruleset.Ruleset, pod Pod) ([]Sample, error) {
	return each(rs, pod, func(m *maker) ([]Sample, error) { return m.of(Outbound, Inbound) })
}

func each(rs ruleset.Ruleset, pod Pod, make func(*maker) ([]Sample, error)) ([]Sample, error) {
	var all []Sample
	for _, f := range ruleset.Families {
		ofFamily := func(a netip.Addr) bool { return ruleset.FamilyOf(a) == f }
		m := maker{rules: rs, family: f, addrs: pod.Addrs, face: pod.Interface}
		i := slices.IndexFunc(m.addrs, ofFamily)
		switch {
		case i >= 0:
			m.own = m.addrs[i]
		case rs.Family(f) == nil:
			continue
		default:
			m.own = examples[f].pod
			m.addrs = append(slices.Clone(m.addrs), m.own)
		}
		samples, err := make(&m)
		if err != nil {
			return nil, fmt.Errorf("sample packets of %s: %w", f, err)
		}
		all = append(all, samples...)
	}
	return all, nil
}

// examples are from the prefixes for documentation (RFC 5737, RFC 3849) and from a usual range of services.
var examples = map[ruleset.Family]struct{ pod, service, outside, client netip.Addr }{
	ruleset.IPv4: {
		netip.AddrFrom4([4]byte{192, 0, 2, 5}), netip.AddrFrom4([4]byte{10, 96, 5, 5}),
		netip.AddrFrom4([4]byte{198, 51, 100, 10}), netip.AddrFrom4([4]byte{203, 0, 113, 9}),
	},
	ruleset.IPv6: {
		netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 5, 15: 5}), netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 15: 5}),
		netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: 0x10}), netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 9, 15: 9}),
	},
}

// nowhere are addresses that nobody outside a pod has.
var nowhere = []netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 8), netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8),
	netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 3), netip.PrefixFrom(netip.IPv6Unspecified(), 96),
	netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80}), 10), netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8),
}

const (
	dnsPort     = 53
	application = 1000  // a user and a group, usually named by no rule
	ephemeral   = 40000 // a client's port, likewise
	// mostTraces bounds the search for a sample, mostExempt the senders that are tried.
	mostTraces, mostExempt = 512, 16
)

// maker makes the samples of one family.
type maker struct {
	rules  ruleset.Ruleset
	family ruleset.Family
	addrs  []netip.Addr // the pod's
	own    netip.Addr   // the one of the family
	face   string
}

func (m *maker) samples() ([]Sample, error) {
	all, err := m.of(Outbound, Inbound, Query)
	if err != nil {
		return nil, err
	}
	exempt, err := m.exempt(all[0])
	return append(all, exempt...), err
}

// of returns the samples of the kinds.
func (m *maker) of(kinds ...Kind) ([]Sample, error) {
	e := examples[m.family]
	to := func(a netip.Addr, port uint16) trace.Packet {
		return trace.Packet{
			Direction: trace.Out, Proto: ruleset.TCP, Src: netip.AddrPortFrom(netip.Addr{}, ephemeral), Dst: netip.AddrPortFrom(a, port),
			UID: application, GID: application, OutInterface: m.face, PodAddrs: m.addrs,
		}
	}
	query, other := to(e.service, dnsPort), to(e.outside, dnsPort)
	query.Proto, other.Proto = ruleset.UDP, ruleset.UDP
	var all []Sample
	for _, kind := range []struct {
		Kind
		first []trace.Packet
	}{
		{Outbound, []trace.Packet{to(e.outside, 443), to(e.service, 443)}},
		{Inbound, []trace.Packet{{
			Direction: trace.In, Proto: ruleset.TCP, Src: netip.AddrPortFrom(e.client, ephemeral), Dst: netip.AddrPortFrom(m.own, 8080),
			InInterface: m.face, PodAddrs: m.addrs,
		}}},
		{Query, []trace.Packet{query, other}},
	} {
		if !slices.Contains(kinds, kind.Kind) {
			continue
		}
		s, err := m.find(kind.Kind, kind.first)
		if err != nil {
			return nil, err
		}
		if s.Kind != Query || s.Captured() || s.Unsure {
			all = append(all, s)
		}
	}
	return all, nil
}

// exempt sends what is captured as each sender that a rule names, and returns what passes.
func (m *maker) exempt(out Sample) (all []Sample, err error) {
	program := m.rules.Family(m.family)
	if program == nil || !out.Captured() {
		return nil, nil
	}
	tried := map[key]bool{keyOf(out.Packet): true}
	for _, c := range slices.Backward(program.Chains) {
		for _, r := range slices.Backward(c.Rules) { // the proxy's come after those of what else is excluded
			p := out.Packet
			for _, o := range r.Owner {
				if !o.Not {
					setOwner(&p, o.Kind, o.First)
				}
			}
			if !r.Mark.IsZero() && !r.Mark.Not {
				p.Mark = r.Mark.Value
			}
			if tried[keyOf(p)] || len(tried) > mostExempt {
				continue
			}
			tried[keyOf(p)] = true
			result, err := trace.Trace(m.rules, p)
			if err != nil {
				return nil, err
			}
			if result.Verdict == trace.Pass {
				all = append(all, Sample{Kind: Exempt, Family: m.family, Packet: p, Result: result})
			}
		}
	}
	slices.Reverse(all)
	return all, nil
}

func setOwner(p *trace.Packet, kind ruleset.OwnerKind, id uint32) {
	switch kind {
	case ruleset.OwnerUID:
		p.UID = id
	case ruleset.OwnerGID:
		p.GID = id
	}
}

// key has the fields in which packets of a kind differ.
type key struct {
	src, dst       netip.AddrPort
	uid, gid, mark uint32
	in, out        string
}

func keyOf(p trace.Packet) key {
	return key{p.Src, p.Dst, p.UID, p.GID, p.Mark, p.InInterface, p.OutInterface}
}

// search looks for a packet that is captured, by what rules match: what is captured is next to something that another rule takes, or
// first in what a rule names. So if there is such a packet, it is found by going on from each packet to the edges of what has matched it.
type search struct {
	*maker
	kind  Kind
	queue []trace.Packet
	seen  map[key]bool
	// avoid are rules that stand for what no packet of the kind is.
	avoid []ruleset.Rule
}

func (m *maker) find(kind Kind, first []trace.Packet) (Sample, error) {
	s := search{maker: m, kind: kind, seen: map[key]bool{}, avoid: m.avoided(kind)}
	for _, p := range first {
		s.visit(p)
	}
	seeded := false
	var passes Sample
	for traced := 0; ; {
		if len(s.queue) == 0 && !seeded {
			seeded = true
			s.seed(first[0])
		}
		if len(s.queue) == 0 || traced == mostTraces {
			passes.Unsure = len(s.queue) > 0
			return passes, nil
		}
		p := s.queue[0]
		s.queue = s.queue[1:]
		if i := slices.IndexFunc(s.avoid, func(r ruleset.Rule) bool { return s.is(p, &r) }); i >= 0 {
			s.around(p, &s.avoid[i])
			continue
		}
		result, err := trace.Trace(m.rules, p)
		if err != nil {
			return Sample{}, err
		}
		found := Sample{Kind: kind, Family: m.family, Packet: p, Result: result}
		if found.Captured() {
			return found, nil
		}
		if traced++; traced == 1 {
			passes = found
		}
		for i := range result.Steps {
			s.around(p, &result.Steps[i].Rule)
		}
	}
}

func (m *maker) avoided(kind Kind) (avoid []ruleset.Rule) {
	if kind == Query { // a resolver may be in the pod
		return nil
	}
	for _, p := range nowhere {
		if ruleset.FamilyOf(p.Addr()) == m.family {
			avoid = append(avoid, ruleset.Rule{Dst: ruleset.MatchPrefix(p)})
		}
	}
	for _, a := range m.addrs {
		if ruleset.FamilyOf(a) == m.family {
			avoid = append(avoid, ruleset.Rule{Dst: ruleset.MatchPrefix(netip.PrefixFrom(a, a.BitLen()))})
		}
	}
	if kind == Inbound {
		for i := range avoid {
			avoid[i] = ruleset.Rule{Src: avoid[i].Dst}
		}
	}
	avoid = append(avoid, ruleset.Rule{DstPorts: ruleset.MatchPorts(ruleset.Port(0))})
	if kind == Outbound { // queries over TCP are not what is asked for
		avoid = append(avoid, ruleset.Rule{DstPorts: ruleset.MatchPorts(ruleset.Port(dnsPort))})
	}
	return avoid
}

// is reports whether a rule of avoid is for the packet.
func (s *search) is(p trace.Packet, r *ruleset.Rule) bool {
	return !r.Dst.IsZero() && r.Dst.Prefix.Contains(p.Dst.Addr()) || !r.Src.IsZero() && r.Src.Prefix.Contains(p.Src.Addr()) ||
		!r.DstPorts.IsZero() && r.DstPorts.Ranges[0].Contains(p.Dst.Port())
}

func (s *search) visit(p trace.Packet) {
	if !s.seen[keyOf(p)] {
		s.seen[keyOf(p)] = true
		s.queue = append(s.queue, p)
	}
}

// seed visits the first packets that each rule names which may lead to where packets are captured.
func (s *search) seed(p trace.Packet) {
	program := s.rules.Family(s.family)
	if program == nil {
		return
	}
	for _, c := range program.Chains {
		for i := range c.Rules {
			switch r := &c.Rules[i]; r.Target.Action {
			case ruleset.ActionJump, ruleset.ActionRedirect, ruleset.ActionDNAT, ruleset.ActionTProxy, ruleset.ActionDrop:
				for _, p := range s.kind.within(p, r) {
					s.visit(p)
				}
			}
		}
	}
}

// within returns the first packets that the rule matches, as far as addresses, ports and owners go.
func (k Kind) within(p trace.Packet, r *ruleset.Rule) []trace.Packet {
	if !r.Dst.IsZero() && !r.Dst.Not && k != Inbound {
		p.Dst = netip.AddrPortFrom(r.Dst.Prefix.Addr(), p.Dst.Port())
	}
	for _, o := range r.Owner {
		if !o.Not {
			setOwner(&p, o.Kind, o.First)
		}
	}
	all := []trace.Packet{p}
	for _, o := range r.DstPorts.Ranges {
		if !r.DstPorts.Not && k != Query {
			p.Dst = netip.AddrPortFrom(p.Dst.Addr(), o.First)
			all = append(all, p)
		}
	}
	return all
}

// around visits the packets at the edges of what the rule matches, in each dimension by itself.
func (s *search) around(p trace.Packet, r *ruleset.Rule) {
	next := p
	if s.kind == Inbound {
		for _, a := range edges(r.Src, p.Src.Addr()) {
			next.Src = netip.AddrPortFrom(a, p.Src.Port())
			s.visit(next)
		}
	} else {
		for _, a := range edges(r.Dst, p.Dst.Addr()) {
			next.Dst = netip.AddrPortFrom(a, p.Dst.Port())
			s.visit(next)
		}
	}
	if s.kind != Query {
		next = p
		for _, o := range r.DstPorts.Ranges {
			ports := []int{int(o.First) - 1, int(o.Last) + 1}
			if r.DstPorts.Not {
				ports = []int{int(o.First)}
			}
			for _, port := range ports {
				if 0 < port && port < 1<<16 {
					next.Dst = netip.AddrPortFrom(p.Dst.Addr(), uint16(port))
					s.visit(next)
				}
			}
		}
	}
	for _, o := range r.Owner {
		ids := []uint32{o.First - 1, o.Last + 1}
		if o.Not {
			ids = []uint32{o.First}
		}
		for _, id := range ids {
			next = p
			if id != ruleset.FullMask { // which no process has
				setOwner(&next, o.Kind, id)
				s.visit(next)
			}
		}
	}
}

// edges are the addresses before and after a prefix, or the first within one that is negated. Of several prefixes they are those of the one with
// the address and its neighbours: what is after the first of a thousand that follow one another is in the second.
func edges(m ruleset.PrefixMatch, at netip.Addr) (edges []netip.Addr) {
	if m.IsZero() {
		return nil
	}
	first := m.Prefix.Masked().Addr()
	if m.Not {
		return []netip.Addr{first}
	}
	last := prefixes.Last(m.Prefix)
	if len(m.More) > 0 {
		list := append([]netip.Prefix{m.Prefix}, m.More...)
		from, to := prefixes.Run(list, max(0, prefixes.Find(list, at)))
		first, last = from.Addr(), prefixes.Last(to)
	}
	for _, a := range []netip.Addr{first.Prev(), last.Next()} {
		if a.IsValid() {
			edges = append(edges, a)
		}
	}
	return edges
}
