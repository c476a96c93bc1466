package trace

import (
	"net/netip"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// kind is a packet's role in its connection.
type kind uint8

const (
	opens   kind = iota // the first packet; for TCP the SYN
	answers             // the answer to it; for TCP the SYN-ACK
	goesOn              // any later one
)

// table is the connection tracking of a pod: of one family, since addresses of two are never alike.
type table struct{ entries []*entry }

// tuple is one direction of a connection.
type tuple struct{ src, dst netip.AddrPort }

// entry is a tracked connection. The reply is what answers look like before they are translated back.
type entry struct {
	proto            ruleset.Proto
	zone             uint16
	orig, reply      tuple
	toKnown          bool // reply.src is an address that is known, not "the interface's"
	dnat, snat       bool
	dstDone, srcDone bool // its destination, its source, are decided
	confirmed        bool // it is in the table
	answered         bool
	mark             uint32
}

// sendTo gives the connection another destination.
func (e *entry) sendTo(to netip.AddrPort, known bool) {
	e.dnat, e.reply.src, e.toKnown = true, to, known
}

// find returns the connection that a packet belongs to, and whether it is an answer.
func (t *table) find(proto ruleset.Proto, zone uint16, packet tuple) (e *entry, reply bool) {
	for _, e := range t.entries {
		if e.proto == proto && e.zone == zone && (e.orig == packet || e.reply == packet) {
			return e, e.orig != packet
		}
	}
	return nil, false
}

// lookUp finds the packet's connection, or begins one. A packet that lo brings keeps what it left with.
func (w *walker) lookUp() {
	if w.tracked || w.invalid || w.connState == ruleset.StateUntracked {
		return
	}
	w.template = false
	packet := tuple{w.src, w.dst}
	e, reply := w.table.find(w.packet.Proto, w.zone, packet)
	switch {
	case e == nil && w.packet.Proto == ruleset.TCP && w.kind == answers:
		w.invalid, w.connState = true, ruleset.StateInvalid
		return
	case e == nil:
		// TCP is picked up in the middle too (nf_conntrack_tcp_loose).
		e = &entry{proto: w.packet.Proto, zone: w.zone, orig: packet, reply: tuple{w.dst, w.src}, toKnown: true}
	}
	w.conn, w.reply, w.tracked = e, reply, true
	e.answered = e.answered || reply
	w.connState = ruleset.StateNew
	if e.answered {
		w.connState = ruleset.StateEstablished
	}
}

// translate rewrites the packet as its connection says: at PREROUTING and OUTPUT the destination, at INPUT and
// POSTROUTING the source.
func (w *walker) translate() {
	if w.table == nil || !w.tracked {
		return
	}
	e := w.conn
	switch w.hook {
	case ruleset.Prerouting, ruleset.Output:
		switch {
		case !w.reply && e.dnat:
			w.dst, w.dstKnown = e.reply.src, e.toKnown
		case w.reply && e.snat:
			w.dst = e.orig.src
		}
	default:
		if !e.confirmed {
			w.table.makeUnique(e)
		}
		switch {
		case w.reply && e.dnat:
			w.src, w.srcUnknown = e.orig.dst, false
		case !w.reply && e.snat:
			w.src = e.reply.dst
		}
	}
}

// makeUnique gives a connection whose answers would look like another's the next port that is free as its source, as the
// kernel does once for each connection that the nat table sees.
func (t *table) makeUnique(e *entry) {
	for range 1 << 16 {
		if other, _ := t.find(e.proto, e.zone, e.reply); other == nil || other == e {
			return
		}
		e.snat = true
		e.reply.dst = netip.AddrPortFrom(e.reply.dst.Addr(), max(e.reply.dst.Port()+1, 1024))
	}
}

// confirm puts the connection into the table once its first packet has come through.
func (w *walker) confirm() {
	if w.table == nil || !w.tracked || w.conn.confirmed || w.hook != ruleset.Input && w.hook != ruleset.Postrouting {
		return
	}
	w.conn.confirmed = true
	w.table.entries = append(w.table.entries, w.conn)
}

// cannotLeave gives the kernel's own reason not to send a process's packet out of the pod; empty if it sends it.
func (w *walker) cannotLeave() string {
	if w.table == nil || w.out == loopback || !w.src.Addr().IsLoopback() {
		return ""
	}
	return "the kernel sends nothing from " + w.src.Addr().String() + " out of " + w.out + ": dropped"
}
