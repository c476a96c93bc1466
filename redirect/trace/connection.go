package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Connection is a conversation to trace: the packet that opens it, and who listens in the pod. A UDP exchange is one too.
type Connection struct {
	// First is the packet that opens it, as its sender sends it: a TCP SYN or a datagram. Its State and ConnMark are not
	// used. Port 0 of Src is port 40000. Proto is TCP or UDP. An In packet needs a Src. An Out packet may have one that is
	// not the pod's, as a proxy's that keeps its client's: InInterface is then where the client is.
	First Packet
	// Listeners are the pod's sockets that answer. Without any, everything in the pod is answered, by root's transparent
	// sockets without a mark. Whoever is asked outside the pod answers.
	Listeners []Listener
}

// Listener is a socket of the pod that answers.
type Listener struct {
	// Port is listened on; 0 is every port that no other listener of the list has.
	Port uint16
	// Proto is TCP or UDP; AnyProto is both.
	Proto ruleset.Proto
	// UID and GID own it, and Mark is its SO_MARK: the answers' too.
	UID, GID, Mark uint32
	// Transparent is IP_TRANSPARENT, without which TPROXY gives it nothing.
	Transparent bool
	// Onward is set for a proxy's listener: the proxy then opens a connection of its own to where the first one was to
	// go, as the listener's owner. It is traced as well.
	Onward *Onward
}

// Onward is a proxy's own connection to the destination of one that it has accepted.
type Onward struct {
	// Src is the address that it sends from; the zero address leaves it to the kernel.
	Src netip.Addr
	// AsClient sends from the client's address instead, with another port.
	AsClient bool
	// Mark is the SO_MARK of that socket.
	Mark uint32
}

// Tracker is a pod whose Rules are in force. It remembers its connections, as the kernel's connection tracking does, so that
// an earlier one can be in the way of a later one with the same addresses and ports. It is not for use by several
// goroutines at once.
type Tracker struct {
	Rules ruleset.Ruleset
	table table
}

// TraceConnection traces a connection both ways in a pod that has no others. The error is that of [Trace].
func TraceConnection(rs ruleset.Ruleset, c Connection) (Conversation, error) {
	t := Tracker{Rules: rs}
	return t.Connect(c)
}

// Connect traces a connection both ways. The error is an [UnmodelledError], or says why the connection is impossible.
func (t *Tracker) Connect(c Connection) (Conversation, error) { return t.connect(c, nil) }

// connect is Connect for a connection that listeners on these ports have caused.
func (t *Tracker) connect(c Connection, behind []uint16) (Conversation, error) {
	first, err := c.clean()
	if err != nil {
		return Conversation{}, err
	}
	family := ruleset.FamilyOf(first.Dst.Addr())
	s := session{table: &t.table, program: t.Rules.Family(family), first: first, listeners: c.Listeners}
	if s.program == nil {
		s.program = &ruleset.FamilyRuleset{Family: family}
	}
	if err := s.hold(); err != nil {
		return Conversation{}, err
	}
	out := s.out
	if out.Verdict != Established || s.listener == nil || s.listener.Onward == nil {
		return out, nil
	}
	if slices.Contains(behind, s.listener.Port) {
		out.Verdict = Loop
		out.Reason = fmt.Sprintf("the connection that the proxy opens for one that its listener on port %d accepted comes back to that listener", s.listener.Port)
		return out, nil
	}
	next, err := t.connect(s.onward(c), append(slices.Clone(behind), s.listener.Port))
	if err != nil {
		return Conversation{}, fmt.Errorf("onward from port %d: %w", s.listener.Port, err)
	}
	out.Onward = &next
	if next.Verdict != Established {
		out.Verdict, out.Reason = next.Verdict, "the proxy's own connection: "+next.Reason
	}
	return out, nil
}

// clean checks the connection and returns its first packet with everything that tracking needs.
func (c Connection) clean() (Packet, error) {
	p := c.First
	p.State, p.ConnMark = 0, 0
	p, err := p.clean()
	switch {
	case err != nil:
		return p, err
	case p.Proto != ruleset.TCP && p.Proto != ruleset.UDP:
		return p, fmt.Errorf("connection: protocol %s is not tcp or udp", p.Proto)
	case p.Dst.Port() == 0:
		return p, fmt.Errorf("connection: it has no destination port")
	case p.Direction == In && !p.Src.Addr().IsValid():
		return p, fmt.Errorf("connection: it comes in and has no source, so there is nobody to answer")
	}
	family := ruleset.FamilyOf(p.Dst.Addr())
	if !slices.ContainsFunc(p.PodAddrs, func(a netip.Addr) bool { return ruleset.FamilyOf(a) == family }) {
		// What comes in counts as addressed to the pod.
		own := p.Dst.Addr()
		if p.Direction == Out {
			own = documentation[family]
		}
		p.PodAddrs = append(slices.Clone(p.PodAddrs), own)
	}
	if !p.Src.Addr().IsValid() {
		w := walker{program: &ruleset.FamilyRuleset{Family: family}, packet: p, dst: p.Dst}
		p.Src = netip.AddrPortFrom(w.likelySource(), p.Src.Port())
	}
	p.Src = netip.AddrPortFrom(p.Src.Addr(), cmp.Or(p.Src.Port(), ephemeral))
	return p, nil
}

// ephemeral is a client's port that rules do not name.
const ephemeral = 40000

// documentation stands for the address of a pod that has none of a family (RFC 5737, RFC 3849).
var documentation = map[ruleset.Family]netip.Addr{
	ruleset.IPv4: netip.MustParseAddr("192.0.2.5"), ruleset.IPv6: netip.MustParseAddr("2001:db8:5::5"),
}
