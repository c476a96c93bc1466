//go:build linux

package apply

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/diagnosis/samples"
	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Rules that are there as they are wanted capture nothing if packets do not come to them: another's rule before them may accept, translate
// or drop a packet, or keep it from connection tracking. So what is live at the hooks of our rules is read whole, whichever program
// wrote it, and the packets that stand for the pod's connections are traced through it.

// inForce traces packets through the hooks with what the changes have read, and what others have beside it.
func (s *session) inForce(ctx context.Context, rs ruleset.Ruleset, hooks *trace.Hooks, changes []*change) (found []ruleset.Difference, err error) {
	hooks.Beside = rs
	owner := rs.Owner()
	read := map[ruleset.Backend][]ruleset.Family{}
	for _, c := range changes {
		read[c.tools.variant] = append(read[c.tools.variant], c.family)
		if c.tools.variant == ruleset.BackendIptablesNFT {
			for _, t := range s.host.asleep {
				sleeps := func(l ruleset.LiveChain) bool { return t == nftTable{nfProto(l.Family), l.Table} }
				if t.isIptables() && slices.ContainsFunc(c.live, sleeps) {
					c.live = slices.DeleteFunc(slices.Clone(c.live), sleeps)
					found = append(found, asleep(t))
				}
			}
		}
		hooks.Add(owned(c.live, owner))
	}
	for _, f := range s.host.families() {
		if len(s.host.legacy[f]) > 0 && !slices.Contains(read[ruleset.BackendIptablesLegacy], f) && rs.Family(f) != nil {
			found = append(found, ruleset.Difference{
				Kind: ruleset.KindUnknown, Family: f, Chain: "rules of iptables-legacy", Position: 1, Rule: "no program of that variant is here to read them",
			})
		}
	}
	beside := slices.DeleteFunc(slices.Clone(s.host.nft), func(t nftTable) bool {
		f := ruleset.IPv4
		if t.family == unix.NFPROTO_IPV6 {
			f = ruleset.IPv6
		}
		return slices.Contains(s.host.asleep, t) || t.isIptables() && slices.Contains(read[ruleset.BackendIptablesNFT], f) ||
			t.family == unix.NFPROTO_INET && slices.Contains(inetTables(owner), t.name)
	})
	if len(beside) > 0 {
		if beside, err = hooked(ctx, s.ns, beside); err != nil {
			return nil, err
		}
		others, err := nativeChains(ctx, s.ns, func(t nftTable) bool { return slices.Contains(beside, t) })
		if err != nil {
			return nil, fmt.Errorf("list nftables rules of others: %w", err)
		}
		hooks.Add(others)
	}
	more, err := fates(s.ns, rs, s.host.families(), hooks)
	return append(found, more...), err
}

// hooked returns those of the tables that have a base chain at a hook of ours.
func hooked(ctx context.Context, ns Namespace, tables []nftTable) (at []nftTable, err error) {
	err = newNFTables(ns).session(ctx, func(s *nftSession) error {
		at = nil
		return s.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) {
			c := parseChain(m)
			t := nftTable{c.family, c.table}
			if c.meetsPackets() && slices.Contains(tables, t) && !slices.Contains(at, t) {
				at = append(at, t)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	return at, nil
}

// asleep says that a table of ours is dormant.
func asleep(t nftTable) ruleset.Difference {
	f := ruleset.IPv4
	if t.family == unix.NFPROTO_IPV6 {
		f = ruleset.IPv6
	}
	return ruleset.Difference{Kind: ruleset.KindFate, Family: f, Chain: "table " + t.String(), Position: 1, Rule: "it is dormant, so no packet meets its rules"}
}

// owned marks the rules of the owner: all in chains of its own, and those that jump to one.
func owned(live ruleset.LiveChains, owner ruleset.Ownership) ruleset.LiveChains {
	for _, c := range live {
		for i := range c.Rules {
			c.Rules[i].Ours = owner.OwnsChain(c.Name) || chains.IsBuiltin(c.Name) && owner.OwnsChain(c.Rules[i].JumpTo)
		}
	}
	return live
}

// fates compares what becomes of packets of the families that the namespace has.
func fates(ns Namespace, rs ruleset.Ruleset, families []ruleset.Family, hooks *trace.Hooks) ([]ruleset.Difference, error) {
	var want ruleset.Ruleset
	for _, f := range families {
		if p := rs.Family(f); p != nil {
			want.Set(p)
		}
	}
	var pod samples.Pod
	lists := rtnetlink.New(ns, rtnetlink.Default)
	defer lists.Close()
	for _, f := range families {
		err := lists.Addrs(byte(netlinkFamily(f)), 0, func(a netip.Addr) bool { //nolint:gosec // an AF_ number
			if a.IsGlobalUnicast() && !slices.Contains(rs.Owner().LoopbackAddrs, a) {
				pod.Addrs = append(pod.Addrs, a)
			}
			return len(pod.Addrs) < mostAddrs
		})
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
	}
	return samples.Differences(want, hooks, pod)
}

// mostAddrs bounds the addresses of a pod by which packets are made.
const mostAddrs = 64

// crowded reports whether somebody else's rules are in a namespace: packets may meet them, so whether they come to ours has to be seen.
func (s *session) crowded(owner ruleset.Ownership, changes []*change) bool {
	for _, c := range changes {
		for _, l := range owned(c.live, owner) {
			atHook := l.Name == ruleset.Output || l.Name == ruleset.Prerouting ||
				chains.IsBuiltin(l.Name) && slices.ContainsFunc(l.Rules, func(r ruleset.LiveRule) bool { return r.Ours })
			if atHook && (l.Policy == ruleset.ActionDrop.String() || slices.ContainsFunc(l.Rules, func(r ruleset.LiveRule) bool { return !r.Ours })) {
				return true
			}
		}
	}
	return len(s.host.asleep) > 0 || len(s.host.legacy[ruleset.IPv4])+len(s.host.legacy[ruleset.IPv6]) > 0 && s.Name() != ruleset.BackendIptablesLegacy ||
		slices.ContainsFunc(s.host.nft, func(t nftTable) bool {
			return !t.isIptables() && !(t.family == unix.NFPROTO_INET && slices.Contains(inetTables(owner), t.name)) ||
				t.isIptables() && s.Name() != ruleset.BackendIptablesNFT
		})
}

// nowInForce is inForce once the changes are made.
func (s *session) nowInForce(ctx context.Context, rs ruleset.Ruleset, changes []*change) ([]ruleset.Difference, error) {
	h, err := look(s.ns)
	if err != nil {
		return nil, fmt.Errorf("look at network namespace: %w", err)
	}
	s.host = h
	if err := each(changes, func(c *change) error { return s.read(ctx, c) }); err != nil {
		return nil, err
	}
	return s.inForce(ctx, rs, &trace.Hooks{}, changes)
}

// inForce traces packets where others have tables beside ours, which is as it is wanted.
func (n native) inForce(ctx context.Context, rs ruleset.Ruleset) (found []ruleset.Difference, err error) {
	h, err := look(n.ns)
	if err != nil {
		return nil, fmt.Errorf("look at network namespace: %w", err)
	}
	// Its programs read iptables' tables best. Without them, what netlink shows is less, and so there is more that cannot be told.
	b, err := newIPTables(n.ns, ruleset.BackendIptablesNFT, n.opts)
	if err != nil {
		if b, err = newIPTables(n.ns, ruleset.BackendIptablesLegacy, n.opts); err != nil {
			b = &iptablesBackend{ns: n.ns, opts: n.opts}
		}
	}
	s := &session{iptablesBackend: b, host: h}
	var changes []*change
	for _, variant := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		t, err := n.opts.tools(variant)
		for _, f := range h.families() {
			if err == nil && h.uses(variant, f) {
				changes = append(changes, &change{family: f, want: &ruleset.FamilyRuleset{Family: f, Owner: rs.Owner()}, tools: t})
			}
		}
	}
	for _, c := range changes {
		if long, err := s.count(ctx, c); long || err != nil {
			return c.diffs, err
		}
	}
	if err := each(changes, func(c *change) error { return s.read(ctx, c) }); err != nil {
		return nil, err
	}
	var hooks trace.Hooks
	hooks.AddRules(rs)
	return s.inForce(ctx, rs, &hooks, changes)
}

// inPlace reports whether the rules are there as they are wanted, but for routing: what packets meet is then worth a look.
func inPlace(diffs []ruleset.Difference) bool {
	return !slices.ContainsFunc(diffs, func(d ruleset.Difference) bool { return d.Table != ruleset.RoutingTable })
}
