package listeners

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Connection is a TCP socket of a namespace that has, or is about to have, a peer; or that of a listener which nobody has
// accepted from yet.
type Connection struct {
	Local, Remote netip.AddrPort
	// State is that of net/tcp_states.h.
	State uint8
	// Orphan: the program on this end has closed it.
	Orphan bool
	// Queued is, of a listener, how many connections wait to be accepted.
	Queued uint32
	// Inbound: somebody listens on the local port, so the peer made it.
	Inbound bool
	// Mark is the socket's (SO_MARK). It is 0 where the kernel does not tell it, to whom has no CAP_NET_ADMIN.
	Mark uint32
	// Received counts the bytes that came from the peer, where that was asked for.
	Received uint64
}

// Established reports whether both ends know of the connection.
func (c Connection) Established() bool {
	return c.State != stateSynSent && c.State != stateSynRecv && !c.Listener()
}

// SynSent reports whether the peer has yet to answer.
func (c Connection) SynSent() bool { return c.State == stateSynSent }

// Listener reports whether this is a listener, with a queue.
func (c Connection) Listener() bool { return c.State == stateListen }

// over reports whether nothing will be sent from here: the end is acknowledged, and nobody could read what still comes.
func (c Connection) over() bool { return c.State == stateFinWait2 && c.Orphan }

const (
	stateFinWait2 = 5  // TCP_FIN_WAIT2
	stateSynSent  = 2  // TCP_SYN_SENT
	stateSynRecv  = 3  // TCP_SYN_RECV
	stateListen   = 10 // TCP_LISTEN
)

// Proxy selects the connections of a namespace that are a proxy's.
type Proxy struct {
	// Outbound are the ports to which what the application sends is redirected, Inbound that for what is sent to it. 0: none.
	Outbound []uint16
	Inbound  uint16
	// Tunnel is the port for peers, which keep their connections to it open when nothing is carried any more. 0: none.
	Tunnel uint16
	// Mark is on the proxy's sockets. The zero value: they cannot be told, so each connection to Tunnel counts as one that is carried.
	Mark redirect.Mark
	// Own are the pod's addresses.
	Own []netip.Addr
}

// carried counts connections that a proxy carries.
type carried struct {
	Proxy
	outbound, inbound, onward int
	received                  map[netip.AddrPort]uint64 // by the tunnel, from each peer
}

func (n *carried) add(c Connection) {
	if n.Tunnel != 0 && c.Local.Port() == n.Tunnel && !c.Listener() {
		n.received[c.Remote] = c.Received
	}
	switch port := c.Local.Port(); {
	case c.Listener(), c.over():
	case slices.Contains(n.Outbound, port):
		n.outbound++
	case port == n.Inbound, port == n.Tunnel && n.Mark.IsZero():
		n.inbound++
	case port != n.Tunnel && n.marked(c) && n.own(c.Remote.Addr()):
		n.onward++
	}
}

func (n *carried) sum() int { return n.outbound + max(n.inbound, n.onward) } // what comes in is carried on

func (p Proxy) marked(c Connection) bool {
	mask := cmp.Or(p.Mark.Mask, ruleset.FullMask)
	return !p.Mark.IsZero() && c.Mark&mask == p.Mark.Value&mask
}

func (p Proxy) own(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(p.Own, a) }

// waits reports whether the proxy has yet to accept the connection, or one of the listener's.
func (p Proxy) waits(c Connection) bool {
	switch port := c.Local.Port(); {
	case port != p.Inbound && port != p.Tunnel && !slices.Contains(p.Outbound, port):
		return false
	case c.Listener():
		return c.Queued > 0
	}
	return !c.Established()
}

// Family is that of the addresses.
func (c Connection) Family() ruleset.Family { return ruleset.FamilyOf(c.Local.Addr()) }
