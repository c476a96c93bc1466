package listeners

import (
	"net/netip"
	"slices"

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

// Carried counts the connections that were made to the proxy's ports, and of those the ones that it has not accepted yet.
func Carried(ports []uint16, all []Connection) (carried, waiting int) {
	for _, c := range all {
		switch {
		case !slices.Contains(ports, c.Local.Port()), c.over():
		case c.Listener():
			waiting += int(c.Queued)
		default:
			carried++
			if !c.Established() {
				waiting++
			}
		}
	}
	return carried, waiting
}

// Family is that of the addresses.
func (c Connection) Family() ruleset.Family { return ruleset.FamilyOf(c.Local.Addr()) }
