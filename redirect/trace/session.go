package trace

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// session is one connection while it is traced.
type session struct {
	table     *table
	program   *ruleset.FamilyRuleset
	first     Packet
	listeners []Listener
	listener  *Listener // who answers in the pod
	out       Conversation
}

// rounds is the number of exchanges: often enough for a mark that a packet of the second round gives the connection
// to meet one more packet each way.
const rounds = 3

// hold sends packets to and fro until one is lost.
func (s *session) hold() error {
	f := s.first
	s.out.Client = Endpoint{
		Pod: f.Direction == Out, UID: f.UID, GID: f.GID, Mark: f.Mark, Local: f.Src, Peer: f.Dst,
		transparent: f.Direction == Out && !s.own(f.Src.Addr()),
	}
	if f.Direction == In {
		s.out.Client.Interface = f.InInterface
	}
	for round := range rounds {
		what, back := "packet", "answer"
		if round > 0 {
			what, back = "later packet", "later answer"
		}
		server := &s.out.Server
		w, err := s.send(what, s.out.Client, f, round)
		switch {
		case err != nil:
			return err
		case round == 0:
			if !s.arrive(w) {
				return nil
			}
		default:
			if why, wrong := s.lost(w, *server); why != "" {
				s.end(pick(wrong, WrongPeer, Lost), "a later packet to "+server.name()+" "+why)
				return nil
			}
		}
		w, err = s.send(back, *server, s.answer(), round)
		if err != nil {
			return err
		}
		if why, wrong := s.lost(w, s.out.Client); why != "" {
			s.end(pick(wrong, WrongPeer, AnswerLost), "the "+back+" of "+server.name()+" "+why)
			return nil
		}
	}
	s.end(Established, "between "+s.out.Client.name()+" and "+s.out.Server.name())
	return nil
}

func pick(first bool, a, b ConnectionVerdict) ConnectionVerdict {
	if first {
		return a
	}
	return b
}

func (s *session) end(v ConnectionVerdict, reason string) { s.out.Verdict, s.out.Reason = v, reason }

// own reports whether an address is the pod's.
func (s *session) own(a netip.Addr) bool {
	w := walker{program: s.program, packet: s.first}
	return w.own(a)
}

// send walks a packet from an endpoint and keeps a record of it, unless it is one of a round that only repeats.
func (s *session) send(what string, from Endpoint, p Packet, round int) (*walker, error) {
	w := newWalker(s.program, p)
	w.table = s.table
	w.srcUnknown = from.unknown
	switch {
	case round > 0:
		w.kind = goesOn
	case from.answers:
		w.kind = answers
	}
	if err := w.walk(); err != nil {
		return nil, err
	}
	passage := Passage{
		What: what, From: from.place(), Sent: Header{p.Src, p.Dst}, Result: w.result(),
		State: stateNames[w.state()],
	}
	if w.dropped == "" {
		passage.To, passage.Arrived = w.leaves, &Header{w.src, w.dst}
		if w.local {
			passage.To = "pod"
		}
	}
	if round < 2 || passage.Arrived == nil {
		s.out.Packets = append(s.out.Packets, passage)
	}
	return w, nil
}

// answer is the packet that the server sends back for one that it got.
func (s *session) answer() Packet {
	e := s.out.Server
	p := Packet{
		Proto: s.first.Proto, Src: e.Local, Dst: e.Peer, PodAddrs: s.first.PodAddrs,
		UID: e.UID, GID: e.GID, Mark: e.Mark, OutInterface: s.first.InInterface,
	}
	p.Direction = Out
	if !e.Pod {
		p.Direction, p.InInterface = In, e.Interface
	}
	if s.first.Direction == Out && !s.out.Client.transparent {
		p.OutInterface = s.first.OutInterface
	}
	return p
}

// arrive finds out who got the first packet; false if nobody did.
func (s *session) arrive(w *walker) bool {
	switch {
	case w.dropped != "":
		s.end(Dropped, w.dropped)
		return false
	case !w.local:
		s.out.Server = Endpoint{Interface: w.leaves, Local: w.dst, Peer: w.src, answers: true}
		if from := w.src.Addr(); s.first.Direction == Out && s.own(from) && !slices.Contains(s.first.PodAddrs, from) {
			s.end(AnswerLost, "the packet leaves by "+w.leaves+" from "+from.String()+", an address that only the pod's loopback interface has: nobody outside can answer it")
			return false
		}
		return true
	}
	port := w.dst.Port()
	if w.tproxy != nil {
		port = w.tproxy.to.Port()
	}
	l := s.find(port)
	if l == nil {
		s.end(Refused, fmt.Sprintf("nobody listens on %s port %d of the pod", s.first.Proto, port))
		if w.tproxy != nil {
			s.end(Dropped, fmt.Sprintf("%s: nobody listens on port %d of the pod, and the kernel drops what no transparent socket takes", w.tproxy.why, port))
		}
		return false
	}
	if w.tproxy != nil && !l.Transparent {
		s.end(Dropped, fmt.Sprintf("%s: the listener on port %d is not transparent, so the kernel drops the packet", w.tproxy.why, port))
		return false
	}
	s.listener = l
	s.out.Server = Endpoint{
		Pod: true, Port: port, UID: l.UID, GID: l.GID, Mark: l.Mark, Local: w.dst, Peer: w.src,
		answers: true, transparent: l.Transparent, unknown: !w.dstKnown,
	}
	return true
}

// find returns the pod's listener on a port, or nil.
func (s *session) find(port uint16) *Listener {
	if len(s.listeners) == 0 {
		return &Listener{Port: port, Transparent: true}
	}
	var found *Listener
	for i := range s.listeners {
		l := s.listeners[i]
		switch {
		case l.Proto != ruleset.AnyProto && l.Proto != s.first.Proto:
		case l.Port == port:
			return &l
		case l.Port == 0 && found == nil:
			l.Port = port
			found = &l
		}
	}
	return found
}

// lost gives the reason that a packet does not reach an endpoint, empty if it does; wrong if it does, but as another's.
func (s *session) lost(w *walker, to Endpoint) (why string, wrong bool) {
	switch {
	case w.dropped != "":
		return "is lost: " + w.dropped, false
	case to.Pod && !w.local:
		return "leaves by " + w.leaves + ", and " + to.name() + " is in the pod", false
	case !to.Pod && w.local:
		if w.keptHere() {
			return fmt.Sprintf("has mark %#x, by which the policy route keeps it in the pod, and %s is outside", w.mark, to.name()), false
		}
		return "stays in the pod, and " + to.name() + " is outside", false
	case !to.Pod && w.leaves != to.Interface:
		return "leaves by " + w.leaves + ", and " + to.name() + " is behind another interface", false
	case w.tproxy != nil && !to.transparent:
		return "is lost: " + w.tproxy.why + ": TPROXY finds a socket that is not transparent, for which the kernel drops it", false
	case w.src != to.Peer:
		return "arrives from " + w.src.String() + ", and who gets it speaks with " + to.Peer.String(), true
	case w.dst != to.Local:
		return "arrives for " + w.dst.String() + ", and " + to.name() + " is at " + to.Local.String(), true
	}
	return "", false
}

// onward is the connection that the proxy opens for the one it accepted.
func (s *session) onward(c Connection) Connection {
	l := s.listener
	p := Packet{
		Direction: Out, Proto: s.first.Proto, Dst: s.first.Dst, UID: l.UID, GID: l.GID, Mark: l.Onward.Mark,
		InInterface: s.first.InInterface, OutInterface: s.first.OutInterface, PodAddrs: s.first.PodAddrs,
	}
	from := l.Onward.Src
	if l.Onward.AsClient {
		from = s.first.Src.Addr()
	}
	forwarded := from.IsLoopback() && !s.own(p.Dst.Addr()) // a loopback address reaches the pod only
	if from.IsValid() && ruleset.FamilyOf(from) == s.program.Family && !forwarded {
		p.Src = netip.AddrPortFrom(from, 0)
	}
	// Not the client's port: two sockets of one address do not share one.
	p.Src = netip.AddrPortFrom(p.Src.Addr(), s.first.Src.Port()%60000+1)
	return Connection{First: p, Listeners: c.Listeners}
}
