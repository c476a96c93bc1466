package trace

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/meshcni/meshcni/internal/text/visible"
)

// ConnectionVerdict is the fate of a whole connection.
type ConnectionVerdict string

// The verdicts.
const (
	// Established: packets get through both ways, and each side sees the addresses that it expects.
	Established ConnectionVerdict = "established"
	// Refused: the first packet arrives where nobody listens.
	Refused ConnectionVerdict = "refused"
	// Dropped: the first packet arrives nowhere.
	Dropped ConnectionVerdict = "dropped"
	// AnswerLost: the server answers, and the answer does not come back to the client.
	AnswerLost ConnectionVerdict = "answer-lost"
	// Lost: the connection is answered, and a later packet of the client does not come to the server.
	Lost ConnectionVerdict = "lost"
	// WrongPeer: a packet comes to one side as if it were of another connection, so that it is not taken.
	WrongPeer ConnectionVerdict = "wrong-peer"
	// Loop: what a proxy sends on comes back to the listener that it came from.
	Loop ConnectionVerdict = "loop"
)

// Conversation is the result of [TraceConnection].
type Conversation struct {
	Verdict ConnectionVerdict `json:"verdict"`
	// Reason says between whom, or where and why it fails.
	Reason string `json:"reason"`
	// Client opened the connection.
	Client Endpoint `json:"client"`
	// Server answered; the zero Endpoint if nobody did.
	Server Endpoint `json:"server,omitzero"`
	// Packets are those that were sent, up to the first that was lost, and at most two each way.
	Packets []Passage `json:"packets"`
	// Onward is the connection that a proxy opens for this one; nil if the server is none, or the connection fails.
	Onward *Conversation `json:"onward,omitempty"`
}

// Endpoint is one side of a connection, with the addresses that its socket sees.
type Endpoint struct {
	// Pod is set for a socket of the pod, and Interface is where one outside is reached.
	Pod       bool   `json:"pod"`
	Interface string `json:"interface,omitempty"`
	// Port is that of the listener that took the connection, in the pod. With TPROXY it differs from Local's.
	Port uint16 `json:"port,omitempty"`
	// UID, GID and Mark are the socket's, in the pod.
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Mark uint32 `json:"mark,omitempty"`
	// Local is its own address, and Peer the other side's. An unspecified Local is the address of the interface that the
	// connection came in by.
	Local netip.AddrPort `json:"local"`
	Peer  netip.AddrPort `json:"peer"`

	answers, transparent, unknown bool
}

// place names an endpoint's side of the wire, for a [Passage].
func (e Endpoint) place() string {
	if e.Pod {
		return "pod"
	}
	return e.Interface
}

// name describes an endpoint.
func (e Endpoint) name() string {
	if !e.Pod {
		return e.Local.String() + " behind " + e.Interface
	}
	s := fmt.Sprintf("%s in the pod (uid %d gid %d", e.Local, e.UID, e.GID)
	if e.Local.Addr().IsUnspecified() {
		s = fmt.Sprintf("port %d in the pod (uid %d gid %d", e.Local.Port(), e.UID, e.GID)
	}
	if e.Port != 0 && e.Port != e.Local.Port() {
		s += fmt.Sprintf(", listening on %d", e.Port)
	}
	if e.Mark != 0 {
		s += fmt.Sprintf(", mark %#x", e.Mark)
	}
	return s + ")"
}

// Header is a packet's addresses.
type Header struct {
	Src netip.AddrPort `json:"src"`
	Dst netip.AddrPort `json:"dst"`
}

// Passage is the way of one packet of a connection.
type Passage struct {
	// What is "packet", "answer", "later packet" or "later answer".
	What string `json:"what"`
	// From and To are "pod" or the name of an interface; To is empty for a packet that arrives nowhere.
	From string `json:"from"`
	To   string `json:"to,omitempty"`
	// Sent and Arrived are its addresses at either end; Arrived is nil for a packet that arrives nowhere.
	Sent    Header  `json:"sent"`
	Arrived *Header `json:"arrived,omitempty"`
	// State is its conntrack state: "new", "established" or "invalid".
	State string `json:"state"`
	// Result has the rules that it met.
	Result
}

// String returns the verdict, with the port of the pod's listener that took the connection.
func (c Conversation) String() string {
	if c.Server.Pod {
		return fmt.Sprintf("%s (%d)", c.Verdict, c.Server.Port)
	}
	return string(c.Verdict)
}

// Explain returns the conversation for people: the verdict and the reason on one line, then each packet with the rules
// that it met, then what a proxy opened for it.
func (c Conversation) Explain() string {
	var b strings.Builder
	p := visible.To(&b)
	p.Printf("%s: %s\n", c.Verdict, c.Reason)
	c.explain(p, "")
	return b.String()
}

func (c Conversation) explain(b *visible.Printer, indent string) {
	b.Printf("%s  client sees %s -> %s\n", indent, c.Client.Local, c.Client.Peer)
	if c.Server.Local.IsValid() {
		b.Printf("%s  server sees %s -> %s\n", indent, c.Server.Peer, c.Server.Local)
	}
	for _, p := range c.Packets {
		b.Printf("%s  %s, %s: %s -> %s, from %s", indent, p.What, p.State, p.Sent.Src, p.Sent.Dst, p.From)
		if p.Arrived != nil {
			b.Printf(" to %s", p.To)
			if *p.Arrived != p.Sent {
				b.Printf(", as %s -> %s", p.Arrived.Src, p.Arrived.Dst)
			}
		}
		for _, mark := range []struct {
			name string
			n    uint32
		}{{"mark", p.Mark}, {"connmark", p.ConnMark}, {"zone", uint32(p.Zone)}} {
			if mark.n != 0 {
				b.Printf(", %s %#x", mark.name, mark.n)
			}
		}
		b.Printf("\n")
		for _, line := range strings.SplitAfter(strings.TrimSuffix(p.Explain(), "\n"), "\n")[1:] {
			b.Printf("%s  %s\n", indent, strings.TrimSuffix(line, "\n"))
		}
	}
	if c.Onward != nil {
		b.Printf("%s  the proxy opens a connection of its own: %s: %s\n", indent, c.Onward.Verdict, c.Onward.Reason)
		c.Onward.explain(b, indent+"  ")
	}
}
