package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Connection is one that a person asks about, as typed.
type Connection struct {
	Direction trace.Direction `json:"direction"`
	// Who opens one that goes out; empty: the application.
	Who   Who    `json:"who,omitempty"`
	Proto string `json:"proto"`
	// Src may be empty; Dst is required.
	Src  string `json:"src,omitempty"`
	Dst  string `json:"dst"`
	Port uint16 `json:"port"`
}

// Who is in the pod.
type Who string

// Who opens connections.
const (
	Application Who = "app"
	Proxy       Who = "proxy"
)

// Class is how a connection ends, in a word.
type Class string

// The classes. Onward is what the proxy itself sends to where it was to go; of an Unknown one the engine claims nothing.
const (
	Mesh    Class = "mesh"
	Direct  Class = "direct"
	Onward  Class = "onward"
	Dropped Class = "dropped"
	Broken  Class = "broken"
	Unknown Class = "unknown"
)

// Way is what becomes of a connection.
type Way struct {
	Class Class `json:"class"`
	// Said is the result in words.
	Said         string             `json:"said"`
	Packet       trace.Packet       `json:"packet"`
	Conversation trace.Conversation `json:"conversation"`
}

func (a *asked) packet(c Connection) (trace.Packet, error) {
	var errs []error
	fail := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	proto, err := trace.ParseProto(c.Proto)
	fail("protocol", err)
	dst, err := addr(c.Dst)
	if err == nil && !dst.IsValid() {
		err = errors.New("an address is wanted, such as 10.96.5.5")
	}
	fail("destination", err)
	src, err := addr(c.Src)
	fail("source", err)
	if c.Port == 0 {
		fail("port", errors.New("want 1 to 65535"))
	}
	p := trace.Packet{Direction: c.Direction, Proto: proto, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, c.Port)}
	switch {
	case c.Direction == trace.In:
	case c.Direction != trace.Out:
		fail("direction", fmt.Errorf("%q is not out or in", c.Direction))
	case c.Who == Proxy:
		p.UID, p.GID, p.Mark = a.Proxy()
	case c.Who == Application || c.Who == "":
		p.UID, p.GID = a.Application()
	default:
		fail("who", fmt.Errorf("%q is not app or proxy", c.Who))
	}
	return p, errors.Join(errs...)
}

// addr reads an address; none is the zero Addr.
func addr(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an address", s)
	}
	return a.Unmap(), nil
}

func (a *asked) trace(c Connection) (Way, error) {
	if a.Explanation.Refused != nil {
		return Way{}, inputError{"pod", errors.New("a pod that is refused does not start, so it has no connections")}
	}
	p, err := a.packet(c)
	if err != nil {
		return Way{}, inputError{"connection", err}
	}
	w, err := a.way(p)
	if err != nil {
		return w, inputError{"connection", err}
	}
	return w, nil
}

func (a *asked) way(p trace.Packet) (Way, error) {
	got, err := a.Connect(p)
	if err != nil {
		return Way{}, err
	}
	w := Way{Packet: p, Conversation: got}
	w.Class, w.Said = a.class(p.Proto, got)
	if uid, gid, mark := a.Proxy(); w.Class == Direct && a.Decision.Selected && p.Direction == trace.Out && p.UID == uid && p.GID == gid && p.Mark == mark {
		w.Class, w.Said = Onward, "straight to where it is sent"
	}
	return w, nil
}

// class says in a word and in a sentence how a connection ends.
func (a *asked) class(proto ruleset.Proto, c trace.Conversation) (class Class, said string) {
	switch c.Verdict {
	case trace.Established:
	case trace.Dropped:
		return Dropped, "dropped: nobody gets it"
	case trace.Refused:
		return Broken, "refused: nobody listens where it arrives"
	case trace.AnswerLost:
		return Broken, "the answer gets lost on its way back"
	case trace.Lost:
		return Broken, "a later packet gets lost"
	case trace.WrongPeer:
		return Broken, "an answer comes as if from somebody else, and is not taken"
	case trace.Loop:
		return Broken, "it goes round in a circle: the proxy's own connection comes back to the proxy"
	default:
		return Unknown, "cannot tell"
	}
	if c.Server.Pod && a.proxyListens(proto, c.Server.Port) {
		return Mesh, fmt.Sprintf("to the proxy, port %d", c.Server.Port)
	}
	if c.Server.Local != c.Client.Peer && len(c.Packets) > 0 && c.Packets[0].Verdict == trace.Redirect {
		return Mesh, "to " + c.Packets[0].ToAddr.String()
	}
	return Direct, "direct, past the proxy"
}

// proxyListens is false for a port that the proxy has for another protocol: the application's socket gets those packets.
func (a *asked) proxyListens(proto ruleset.Proto, port uint16) bool {
	listeners := a.Listeners(ruleset.IPv4) // the proxy has the same ports for both families
	return slices.ContainsFunc(listeners, func(l trace.Listener) bool {
		return l.Port != 0 && l.Port == port && (l.Proto == ruleset.AnyProto || l.Proto == proto)
	})
}
