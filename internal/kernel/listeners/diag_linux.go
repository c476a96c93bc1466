package listeners

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/rtnetlink"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// From linux/inet_diag.h and net/tcp_states.h.
const (
	reqSize, msgSize = 56, 72
	skV6Only         = 11  // INET_DIAG_SKV6ONLY
	skMark           = 15  // INET_DIAG_MARK
	skInfo           = 2   // INET_DIAG_INFO
	bytesReceived    = 128 // of struct tcp_info, since Linux 4.1
	stateTimeWait    = 6   // TCP_TIME_WAIT
	stateClose       = 7   // TCP_CLOSE, which is the state of a UDP socket that is not connected
	statesAll        = 1<<12 - 2
	// oldRequest is TCPDIAG_GETSOCK, with a struct inet_diag_req: the only request whose answer has both address families.
	oldRequest, oldSize = 18, 60
)

// Missing returns the needs that no socket of the namespace serves: one that listens for TCP connections, or that receives datagrams
// from anybody. Own are the pod's addresses. Who has the namespace can make any number of sockets: they are read until all needs are
// served, those of other ports only if several are looked for, and no more than [rtnetlink.Default]. Then the error is an
// [nfnetlink.ErrLong].
func Missing(ns *netnsexec.NetNS, needs []Need, own []netip.Addr) (missing []Need, err error) {
	return missingWithin(ns, needs, own, rtnetlink.Default)
}

func missingWithin(ns *netnsexec.NetNS, needs []Need, own []netip.Addr, limit rtnetlink.Limit) ([]Need, error) {
	missing := slices.Clone(needs)
	err := diagnose(ns, limit, func(c *rtnetlink.Conn) error {
		for _, udp := range []bool{false, true} {
			for _, family := range []byte{unix.AF_INET6, unix.AF_INET} { // one of IPv6 may serve both
				body, ok := request(missing, family, udp)
				if !ok {
					continue
				}
				err := c.Dump("sockets", unix.SOCK_DIAG_BY_FAMILY, unix.SOCK_DIAG_BY_FAMILY, body, func(b []byte) (more bool) {
					m := message(b)
					if !m.valid() {
						return true
					}
					s, before := m.socket(udp), len(missing)
					missing = slices.DeleteFunc(missing, func(n Need) bool { return s.serves(n, own) })
					if len(missing) == before {
						return true
					}
					_, more = request(missing, family, udp)
					return more
				})
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	return missing, err
}

// request asks for the sockets of a family that may serve the needs (struct inet_diag_req_v2): those of the port, if it is one. It is
// not ok if none is needed.
func request(needs []Need, family byte, udp bool) (body []byte, ok bool) {
	var port uint16
	for _, n := range needs {
		switch {
		case n.UDP != udp, family == unix.AF_INET && n.Family == ruleset.IPv6:
		case !ok:
			port, ok = n.Port, true
		case n.Port != port:
			port = 0
		}
	}
	proto, state := byte(unix.IPPROTO_TCP), stateListen
	if udp {
		proto, state = unix.IPPROTO_UDP, stateClose
	}
	body = make([]byte, reqSize)
	body[0], body[1] = family, proto
	binary.NativeEndian.PutUint32(body[4:], 1<<state)
	binary.BigEndian.PutUint16(body[8:], port) // idiag_sport; 0: any
	return body, ok
}

// each calls fn with the namespace's TCP sockets until it returns false. What only waits for late packets of a connection that has
// ended is none.
//
// The kernel looks for them in a table of all namespaces, which takes most of a millisecond, so it is asked once.
//
// With info each has its Received too.
func each(ns *netnsexec.NetNS, limit rtnetlink.Limit, info bool, fn func(Connection) (more bool)) error {
	return diagnose(ns, limit, func(c *rtnetlink.Conn) error {
		body := make([]byte, oldSize)
		if info {
			body[3] = 1 << (skInfo - 1)
		}
		binary.NativeEndian.PutUint32(body[52:], statesAll&^(1<<stateTimeWait|1<<stateClose))
		return c.Dump("connections", oldRequest, oldRequest, body, func(b []byte) bool {
			m := message(b)
			return !m.valid() || fn(m.connection())
		})
	})
}

// Connections returns the namespace's TCP connections, also those that are being made or closed. Of a namespace with more than
// [rtnetlink.Default] it returns as many and an [nfnetlink.ErrLong].
func Connections(ns *netnsexec.NetNS) (all []Connection, err error) {
	return connectionsWithin(ns, rtnetlink.Default)
}

func connectionsWithin(ns *netnsexec.NetNS, limit rtnetlink.Limit) (all []Connection, err error) {
	listening := map[uint16]bool{}
	err = each(ns, limit, false, func(c Connection) bool {
		if c.State == stateListen {
			listening[c.Local.Port()] = true
		}
		if c.State != stateListen || c.Queued > 0 {
			all = append(all, c)
		}
		return true
	})
	for i := range all {
		all[i].Inbound = listening[all[i].Local.Port()]
	}
	return all, err
}

// Carried counts the namespace's connections that the proxy carries. What comes by the tunnel counts where it is carried on to the
// application: a peer's idle connection carries nothing. None is kept. Of a namespace with more than [rtnetlink.Default] it returns
// how many were seen and an [nfnetlink.ErrLong].
//
// What lives for milliseconds is missed by that: received has, by peer, the bytes that came by each connection to the tunnel so far.
func Carried(ns *netnsexec.NetNS, p Proxy) (connections int, received map[netip.AddrPort]uint64, err error) {
	return carriedWithin(ns, p, rtnetlink.Default)
}

func carriedWithin(ns *netnsexec.NetNS, p Proxy, limit rtnetlink.Limit) (int, map[netip.AddrPort]uint64, error) {
	n := carried{Proxy: p, received: map[netip.AddrPort]uint64{}}
	err := each(ns, limit, true, func(c Connection) bool {
		n.add(c)
		return true
	})
	return n.sum(), n.received, err
}

// Waits reports whether a connection to the proxy's ports waits to be accepted. It stops at the first. In a namespace with more than
// [rtnetlink.Default] one may, so the error is an [nfnetlink.ErrLong].
func Waits(ns *netnsexec.NetNS, p Proxy) (waits bool, err error) {
	err = each(ns, rtnetlink.Default, false, func(c Connection) bool {
		waits = p.waits(c)
		return !waits
	})
	return waits, err
}

// diagnose opens a socket for questions about the namespace's sockets.
func diagnose(ns *netnsexec.NetNS, limit rtnetlink.Limit, fn func(*rtnetlink.Conn) error) error {
	c := rtnetlink.NewDiag(ns, limit)
	defer c.Close()
	if err := fn(c); err != nil {
		return fmt.Errorf("list the sockets of network namespace %s: %w", ns.ID(), err)
	}
	return nil
}

// message is a struct inet_diag_msg and its attributes.
type message []byte

func (m message) valid() bool {
	return len(m) >= msgSize && (m[0] == unix.AF_INET || m[0] == unix.AF_INET6)
}

// addr reads an address of the socket's family.
func (m message) addr(at int) netip.Addr {
	if m[0] == unix.AF_INET {
		return netip.AddrFrom4([4]byte(m[at:]))
	}
	return netip.AddrFrom16([16]byte(m[at:]))
}

func (m message) connection() Connection {
	c := Connection{
		Local:  netip.AddrPortFrom(m.addr(8).Unmap(), binary.BigEndian.Uint16(m[4:])),
		Remote: netip.AddrPortFrom(m.addr(24).Unmap(), binary.BigEndian.Uint16(m[6:])),
		State:  m[1], Orphan: binary.NativeEndian.Uint32(m[68:]) == 0, Queued: binary.NativeEndian.Uint32(m[56:]),
	}
	if mark := m.attribute(skMark); len(mark) >= 4 {
		c.Mark = binary.NativeEndian.Uint32(mark)
	}
	if info := m.attribute(skInfo); len(info) >= bytesReceived+8 {
		c.Received = binary.NativeEndian.Uint64(info[bytesReceived:])
	}
	return c
}

func (m message) socket(udp bool) Socket {
	v6Only := m.attribute(skV6Only)
	return Socket{UDP: udp, Port: binary.BigEndian.Uint16(m[4:]), Addr: m.addr(8), V6Only: len(v6Only) > 0 && v6Only[0] != 0}
}

// attribute returns the value of an attribute; nil: there is none.
func (m message) attribute(kind uint16) []byte {
	return nfnetlink.Attr{Data: m[msgSize:]}.Attr(kind).Data
}
