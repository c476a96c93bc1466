package compare

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// ConnectionDifference is one connection that goes otherwise, although its first packet has the same fate.
type ConnectionDifference struct {
	Packet trace.Packet `json:"packet"`
	// Again is set if it is not the connection that the packet opens, but a datagram that the proxy sends afterwards
	// from and to the same addresses and ports, as it may for a look-up of the application's, and that one of the programs
	// gives back to the proxy, for want of conntrack zones.
	Again bool `json:"again,omitempty"`
	// Better is set if only the first program is at fault: it gives back such a datagram, and the second keeps the two apart;
	// or who asked gets no answer under the first, and does under the second.
	Better bool               `json:"better,omitempty"`
	A      trace.Conversation `json:"a"`
	B      trace.Conversation `json:"b"`
}

// String returns for example
// "connection: out tcp 198.51.100.10 -> 10.244.1.5:8080 uid 0 gid 0 by eth0 mark 0x539: established (8080) | answer-lost (8080)".
func (d ConnectionDifference) String() string {
	what := "connection: "
	if d.Again {
		what = "the proxy's own after it: "
	}
	return what + Describe(d.Packet) + ": " + d.A.String() + " | " + d.B.String()
}

// connections makes a connection for each first packet that opens one, and one of each kind that a proxy with
// a mark opens to the pod from a client's address.
func connections(o Options, grids []*grid) iter.Seq[trace.Connection] {
	listeners := slices.Clone(o.Listeners)
	for i := range listeners {
		listeners[i].Onward = nil
	}
	return func(yield func(trace.Connection) bool) {
		for _, g := range grids {
			for p := range g.packets() {
				if p.Dst.Port() != 0 && !yield(trace.Connection{First: p, Listeners: listeners}) {
					return
				}
			}
		}
		for _, g := range grids {
			for p := range g.marked() {
				if p.Dst.Port() != 0 && !yield(trace.Connection{First: p, Listeners: listeners}) {
					return
				}
			}
		}
	}
}

// marked makes the first packets of a proxy's connections from clients' addresses.
func (g *grid) marked() iter.Seq[trace.Packet] {
	return func(yield func(trace.Packet) bool) {
		for _, client := range g.srcs {
			if g.own(client) {
				continue
			}
			for _, dst := range g.pod {
				for k := range g.kinds() {
					if k.mark != 0 && !yield(trace.Packet{
						Direction: trace.Out, Proto: k.proto, Src: netip.AddrPortFrom(client, k.sport), Dst: netip.AddrPortFrom(dst, k.dport),
						UID: g.uids[0], GID: g.gids[0], Mark: k.mark, PodAddrs: g.pod,
					}) {
						return
					}
				}
			}
		}
	}
}

// connect traces a connection both ways through both programs.
func (r *Report) connect(a, b ruleset.Ruleset, c trace.Connection) error {
	podA, podB := &trace.Tracker{Rules: a}, &trace.Tracker{Rules: b}
	for again := range 2 {
		ca, err := podA.Connect(c)
		if err != nil {
			return fmt.Errorf("first program, connection %s: %w", Describe(c.First), err)
		}
		cb, err := podB.Connect(c)
		if err != nil {
			return fmt.Errorf("second program, connection %s: %w", Describe(c.First), err)
		}
		r.Connections++
		if !alike(ca, cb) {
			better := again == 1 && redirected(ca) && !redirected(cb) ||
				ca.Verdict == trace.AnswerLost && cb.Verdict == trace.Established && ca.Server == cb.Server
			if again == 1 || ca.Packets[0].Result.Same(cb.Packets[0].Result) {
				r.ConnectionDifferences = append(r.ConnectionDifferences, ConnectionDifference{c.First, again == 1, better, ca, cb})
			}
			break
		}
		if c.First.Proto != ruleset.UDP || c.First.Direction != trace.Out || ca.Verdict != trace.Established || !redirected(ca) {
			break
		}
		c.First.UID, c.First.GID, c.First.Mark = ca.Server.UID, ca.Server.GID, ca.Server.Mark
	}
	return nil
}

// alike reports whether two connections go alike, as their two sides see it.
func alike(a, b trace.Conversation) bool {
	return a.Verdict == b.Verdict && a.Client == b.Client && a.Server == b.Server
}

// redirected reports whether another than who was asked answers, in the pod.
func redirected(c trace.Conversation) bool { return c.Server.Pod && c.Server.Local != c.Client.Peer }
