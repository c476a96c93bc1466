package compare

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/internal/prefixes"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// packets makes one packet of each kind that the rules of the programs tell apart.
// They are first packets of connections and, where a rule names such a state, also packets that connection
// tracking takes for invalid, related or untracked. Established ones are those of [connections].
func packets(grids []*grid) iter.Seq[trace.Packet] {
	return func(yield func(trace.Packet) bool) {
		for _, g := range grids {
			for _, state := range g.sent() {
				for p := range g.packets() {
					if p.State = state; !yield(p) {
						return
					}
				}
			}
		}
	}
}

// sent lists the states of the packets to send: that of a first one, and those that rules name.
func (g *grid) sent() []ruleset.States {
	states := []ruleset.States{0}
	for _, state := range []ruleset.States{ruleset.StateInvalid, ruleset.StateRelated, ruleset.StateUntracked} {
		if g.states&state != 0 {
			states = append(states, state)
		}
	}
	return states
}

// gridsOf returns the grid of each family with the values to send, unless they make too many packets.
func gridsOf(podAddrs []netip.Addr, programs ...ruleset.Ruleset) (grids []*grid, err error) {
	count := 0
	for _, f := range ruleset.Families {
		g := gridOf(f, podAddrs, programs)
		g.choose()
		n := g.count()
		if n > maxPackets || count+n > maxPackets {
			return nil, fmt.Errorf("%w, over %d: %s", ErrMany, maxPackets, g)
		}
		grids, count = append(grids, g), count+n
	}
	return grids, nil
}

// count returns how many packets there are, at most one more than there may be.
func (g *grid) count() int {
	total := 0
	times := func(factors ...int) {
		n := len(g.sent())
		for _, f := range factors {
			if f != 0 && n > maxPackets/f {
				n = maxPackets + 1
			} else {
				n *= f
			}
		}
		total = min(total+n, maxPackets+1)
	}
	own := func(a netip.Addr) bool { return g.own(a) }
	foreign := len(slices.DeleteFunc(slices.Clone(g.srcs), own))
	ownDsts := len(g.dsts) - len(slices.DeleteFunc(slices.Clone(g.dsts), own))
	kinds := 2 * len(g.ports) // of both protocols
	times(len(g.dsts)-ownDsts, len(g.outFaces), kinds, len(g.sports), len(g.marks), len(g.uids), len(g.gids))
	times(ownDsts, len(g.srcs)-foreign, kinds, len(g.sports), len(g.marks), len(g.uids), len(g.gids))
	for _, face := range g.inFaces {
		times(len(g.reached(face)), foreign, kinds, len(g.sports))
	}
	return total
}

// String counts the values of each dimension.
func (g *grid) String() string {
	return fmt.Sprintf("%s destinations %d, sources %d, ports %d, source ports %d, users %d, groups %d, marks %d, interfaces %d", g.family,
		len(g.dsts), len(g.srcs), len(g.ports), len(g.sports), len(g.uids), len(g.gids), len(g.marks), len(g.inFaces)+len(g.outFaces))
}

// Values that are kinder to read than the first of an interval.
var (
	niceAddrs = addrs("10.96.0.10", "198.51.100.10", "10.0.0.1", "172.16.3.3", "192.168.1.1", "127.0.0.1", "127.0.0.6",
		"2001:db8::10", "fd00:96::10", "fd00::1", "::1", "::6")
	nicePorts = []uint16{443, 80, 8080, 53, 22, 3306}
	niceIDs   = []uint32{1000, 0, 2000, 65534}
	// documentation stands for the address of a pod that has none of a family.
	documentation = addrs("192.0.2.5", "2001:db8:5::5")
)

// ephemeral is a client's port that rules do not name.
const ephemeral = 40000

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, s := range list {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}

// grid holds, for each dimension, where the intervals begin that rules tell apart.
type grid struct {
	family            ruleset.Family
	pod, lo           []netip.Addr // the pod's addresses, and more that lo has
	dsts, srcs        []netip.Addr
	ports, sports     []uint16
	uids, gids        []uint32
	marks             []uint32
	inFaces, outFaces []string
	states            ruleset.States // that rules name
}

// gridOf is the grid of the programs of a family.
func gridOf(f ruleset.Family, podAddrs []netip.Addr, programs []ruleset.Ruleset) *grid {
	g := &grid{
		family: f, ports: []uint16{0}, sports: []uint16{0}, uids: []uint32{0}, gids: []uint32{0}, marks: []uint32{0},
		inFaces: []string{"eth0"}, outFaces: []string{"eth0"},
	}
	for _, a := range append(slices.Clone(podAddrs), documentation...) {
		if ruleset.FamilyOf(a) == f && (len(g.pod) == 0 || slices.Contains(podAddrs, a)) {
			g.pod = append(g.pod, a)
		}
	}
	every, loopback := "0.0.0.0/0", "127.0.0.0/8"
	if f == ruleset.IPv6 {
		every, loopback = "::/0", "::1/128"
	}
	g.both(netip.MustParsePrefix(every))
	g.both(netip.MustParsePrefix(loopback))
	for _, a := range g.pod {
		g.both(netip.PrefixFrom(a, a.BitLen()))
	}
	for _, rs := range programs {
		if p := rs.Family(f); p != nil {
			g.program(p)
		}
	}
	return g
}

// both adds a prefix to the destinations and the sources.
func (g *grid) both(p netip.Prefix) {
	g.prefix(&g.dsts, p)
	g.prefix(&g.srcs, p)
}

// prefix adds the first address of a prefix, and the first one after it.
func (g *grid) prefix(to *[]netip.Addr, p netip.Prefix) {
	*to = append(*to, p.Masked().Addr())
	if next := prefixes.Last(p).Next(); next.IsValid() {
		*to = append(*to, next)
	}
}

func (g *grid) program(p *ruleset.FamilyRuleset) {
	for _, a := range p.LoopbackAddrs {
		g.lo = append(g.lo, a)
		g.both(netip.PrefixFrom(a, a.BitLen()))
	}
	for _, c := range p.Chains {
		for i := range c.Rules {
			g.rule(c.Table, &c.Rules[i])
		}
	}
}

func (g *grid) rule(t ruleset.Table, r *ruleset.Rule) {
	addrs := func(to *[]netip.Addr, m ruleset.PrefixMatch) {
		if !m.IsZero() {
			g.prefix(to, m.Prefix)
		}
		for _, p := range m.More {
			g.prefix(to, p)
		}
	}
	addrs(&g.dsts, r.Dst)
	addrs(&g.srcs, r.Src)
	ports := func(to *[]uint16, m ruleset.PortMatch) {
		for _, p := range m.Ranges {
			*to = append(*to, p.First)
			if p.Last < 65535 {
				*to = append(*to, p.Last+1)
			}
		}
	}
	g.states |= r.States
	ports(&g.ports, r.DstPorts)
	if t != ruleset.Raw { // there they choose zones, which is no fate
		ports(&g.sports, r.SrcPorts)
	}
	for _, o := range r.Owner {
		if o.IsZero() {
			continue
		}
		to := &g.uids
		if o.Kind == ruleset.OwnerGID {
			to = &g.gids
		}
		*to = append(*to, o.First)
		if o.Last < ruleset.FullMask-1 {
			*to = append(*to, o.Last+1)
		}
	}
	if !r.Mark.IsZero() {
		g.marks = append(g.marks, r.Mark.Value)
	}
	if !r.In.IsZero() && r.In.Name != "lo" {
		g.inFaces = append(g.inFaces, r.In.Name)
	}
	if !r.Out.IsZero() && r.Out.Name != "lo" {
		g.outFaces = append(g.outFaces, r.Out.Name)
	}
}

// spread returns one value of each interval, a nice one if there is one.
func spread[T any](starts, nice []T, compare func(a, b T) int) []T {
	slices.SortFunc(starts, compare)
	starts = slices.CompactFunc(starts, func(a, b T) bool { return compare(a, b) == 0 })
	out := make([]T, len(starts))
	for i, s := range starts {
		out[i] = s
		for _, n := range nice {
			if compare(n, s) >= 0 && (i+1 == len(starts) || compare(n, starts[i+1]) < 0) {
				out[i] = n
				break
			}
		}
	}
	return out
}

// packets makes one packet of each kind.
func (g *grid) packets() iter.Seq[trace.Packet] {
	return func(yield func(trace.Packet) bool) {
		_ = g.out(yield) && g.in(yield)
	}
}

// choose makes the grid's values those to send.
func (g *grid) choose() {
	nice := append(slices.Clone(g.pod), niceAddrs...)
	nice = slices.DeleteFunc(nice, func(a netip.Addr) bool { return ruleset.FamilyOf(a) != g.family })
	// Nobody sends to the loopback network's own address.
	network := func(a netip.Addr) bool { return a == netip.AddrFrom4([4]byte{127}) }
	g.dsts = slices.DeleteFunc(spread(g.dsts, nice, netip.Addr.Compare), network)
	g.srcs = slices.DeleteFunc(spread(g.srcs, nice, netip.Addr.Compare), network)
	g.ports, g.sports = spread(g.ports, nicePorts, cmp.Compare), spread(g.sports, []uint16{ephemeral}, cmp.Compare)
	g.uids, g.gids = spread(g.uids, niceIDs, cmp.Compare), spread(g.gids, niceIDs, cmp.Compare)
	g.marks = spread(g.marks, nil, cmp.Compare)
	g.inFaces, g.outFaces = spread(interfaces(g.inFaces), nil, cmp.Compare), spread(interfaces(g.outFaces), nil, cmp.Compare)
}

// interfaces puts an interface in place of each wildcard: one that no other of the names matches, if there is one.
func interfaces(names []string) []string {
	matches := make([]ruleset.InterfaceMatch, len(names))
	for i, name := range names {
		matches[i].Name = name
	}
	out := slices.Clone(names)
	for i, m := range matches {
		prefix, ok := m.Wildcard()
		if !ok {
			continue
		}
		narrower := func(name string) bool {
			return slices.ContainsFunc(matches, func(o ruleset.InterfaceMatch) bool {
				beginning, wildcard := o.Wildcard()
				return o.Matches(name) && (!wildcard || len(beginning) > len(prefix))
			})
		}
		out[i] = prefix
		for _, end := range "0123456789abcdefghijklmnopqrstuvwxyz" {
			if name := prefix + string(end); !narrower(name) {
				out[i] = name
				break
			}
		}
	}
	return out
}

// kind is a protocol, a pair of ports and a mark.
type kind struct {
	proto        ruleset.Proto
	sport, dport uint16
	mark         uint32
}

// kinds makes each.
func (g *grid) kinds() iter.Seq[kind] {
	return func(yield func(kind) bool) {
		for _, proto := range []ruleset.Proto{ruleset.TCP, ruleset.UDP} {
			for _, dport := range g.ports {
				for _, sport := range g.sports {
					for _, mark := range g.marks {
						if !yield(kind{proto, sport, dport, mark}) {
							return
						}
					}
				}
			}
		}
	}
}

// own reports whether the address is the pod's: what is sent to it leaves by
// lo, and may come from any of the pod's addresses.
func (g *grid) own(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(g.pod, a) || slices.Contains(g.lo, a)
}

func (g *grid) out(yield func(trace.Packet) bool) bool {
	ownSources := slices.DeleteFunc(slices.Clone(g.srcs), func(a netip.Addr) bool { return !g.own(a) })
	for _, dst := range g.dsts {
		faces, sources := g.outFaces, g.pod[:1]
		if g.own(dst) {
			faces, sources = []string{"lo"}, ownSources
		}
		for k := range g.kinds() {
			for _, uid := range g.uids {
				for _, gid := range g.gids {
					for _, face := range faces {
						for _, src := range sources {
							if !yield(trace.Packet{
								Direction: trace.Out, Proto: k.proto, Src: netip.AddrPortFrom(src, k.sport), Dst: netip.AddrPortFrom(dst, k.dport),
								UID: uid, GID: gid, OutInterface: face, Mark: k.mark, PodAddrs: g.pod,
							}) {
								return false
							}
						}
					}
				}
			}
		}
	}
	return true
}

// reached returns to whom packets come in by an interface: the outside sends to the pod; what lies behind its interfaces sends to
// anybody.
func (g *grid) reached(face string) []netip.Addr {
	if face == "eth0" {
		return g.pod
	}
	return slices.DeleteFunc(slices.Clone(g.dsts), netip.Addr.IsLoopback)
}

// in: loopback addresses do not come in, and nobody marks for the pod.
func (g *grid) in(yield func(trace.Packet) bool) bool {
	for _, face := range g.inFaces {
		dsts := g.reached(face)
		for _, src := range g.srcs {
			if g.own(src) {
				continue
			}
			for _, dst := range dsts {
				for k := range g.kinds() {
					if k.mark == 0 && !yield(trace.Packet{
						Direction: trace.In, Proto: k.proto, Src: netip.AddrPortFrom(src, k.sport), Dst: netip.AddrPortFrom(dst, k.dport),
						InInterface: face, PodAddrs: g.pod,
					}) {
						return false
					}
				}
			}
		}
	}
	return true
}
