package samples

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

const (
	// mostOthers bounds the rules of others by which packets are made, since a pod may have any number.
	mostOthers = 512
	// mostFound bounds the findings of a kind.
	mostFound = 8
)

// Differences returns the packets to which something else happens in the namespace than the wanted rules do, or of which that cannot be
// told: the samples, and for each rule of others those of them that it matches. Of the latter, those that are dropped are none: nothing
// goes past the proxy by them. The error is that of [Of].
func Differences(want ruleset.Ruleset, live *trace.Hooks, pod Pod) ([]ruleset.Difference, error) {
	all, err := Of(want, pod)
	if err != nil {
		return nil, err
	}
	others, more := live.Others(mostOthers)
	c := comparison{want: want, live: live, said: map[string]bool{}, n: map[ruleset.Kind]int{}}
	for _, s := range all {
		if !s.Captured() && s.Kind != Exempt {
			continue // whatever others do with it takes nothing from us
		}
		if err := c.packet(s, s.Packet); err != nil {
			return nil, err
		}
		if more {
			c.add(s, ruleset.KindUnknown, "others have more rules there than are looked at", fmt.Sprintf("others have more than %d rules before it", mostOthers))
		}
		if s.Kind == Exempt {
			continue
		}
		for i := range others {
			for _, p := range s.matched(&others[i]) {
				if err := c.packet(s, p); err != nil {
					return nil, err
				}
			}
		}
	}
	return c.found, nil
}

// matched returns the sample as the rule matches it; none if it matches none of its kind.
func (s Sample) matched(r *ruleset.Rule) (all []trace.Packet) {
	p := s.Packet
	var here, other ruleset.InterfaceMatch
	face := &p.OutInterface
	here, other = r.Out, r.In
	if s.Kind == Inbound {
		here, other, face = r.In, r.Out, &p.InInterface
	}
	if !here.IsZero() && !here.Not {
		prefix, wild := here.Wildcard()
		*face = prefix
		if wild {
			*face += "0"
		}
	}
	switch {
	case r.Proto != ruleset.AnyProto && r.Proto != p.Proto, !r.Mark.IsZero(), !r.ConnMark.IsZero(),
		s.elsewhere(r.Src) || s.elsewhere(r.Dst), r.States != 0 && r.States&ruleset.StateNew == 0, !other.IsZero(), *face == "lo", len(r.Owner) > 0 && s.Kind == Inbound:
		return nil
	}
	if !r.SrcPorts.IsZero() && !r.SrcPorts.Not {
		p.Src = netip.AddrPortFrom(p.Src.Addr(), r.SrcPorts.Ranges[0].First)
	}
	if s.Kind == Inbound && !r.Src.IsZero() && !r.Src.Not {
		p.Src = netip.AddrPortFrom(r.Src.Prefix.Addr(), p.Src.Port())
	}
	for _, p := range s.Kind.within(p, r) {
		outside := func(a netip.Addr) bool {
			return !a.IsLoopback() && !slices.ContainsFunc(nowhere, func(n netip.Prefix) bool { return n.Contains(a) })
		}
		if keyOf(p) != keyOf(s.Packet) && outside(p.Dst.Addr()) && (s.Kind != Inbound || outside(p.Src.Addr())) {
			all = append(all, p)
		}
	}
	return all
}

// elsewhere reports whether a match is for addresses of the other family, as chains of nftables for both have them.
func (s Sample) elsewhere(m ruleset.PrefixMatch) bool {
	return !m.IsZero() && ruleset.FamilyOf(m.Prefix.Addr()) != s.Family
}

// comparison gathers what differs, the same of a kind once.
type comparison struct {
	want  ruleset.Ruleset
	live  *trace.Hooks
	found []ruleset.Difference
	said  map[string]bool
	n     map[ruleset.Kind]int
}

func (c *comparison) packet(s Sample, p trace.Packet) error {
	want, err := trace.Trace(c.want, p)
	if err != nil {
		return err
	}
	got, err := c.live.Trace(p)
	switch {
	case want.Verdict == trace.Pass && s.Kind != Exempt:
	case err != nil:
		c.add(s, ruleset.KindUnknown, err.Error(), fmt.Sprintf("%s, wanted: %s: %s", p, want, strings.TrimPrefix(err.Error(), "trace: ")))
	case got.Verdict == trace.Drop && keyOf(p) != keyOf(s.Packet): // a firewall for some packets takes none past the proxy
	case !got.Same(want):
		c.add(s, ruleset.KindFate, got.Reason, fmt.Sprintf("%s: %s, wanted: %s: %s", p, got, want, got.Reason))
	}
	return nil
}

func (c *comparison) add(s Sample, kind ruleset.Kind, key, text string) {
	key = s.Family.String() + string(s.Kind) + string(kind) + key
	if !c.said[key] && c.n[kind] < mostFound {
		c.said[key] = true
		c.n[kind]++
		c.found = append(c.found, ruleset.Difference{Kind: kind, Family: s.Family, Chain: string(s.Kind), Position: 1, Rule: text})
	}
}
