package engine

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Connection is one that a person asks about.
type Connection struct {
	// Direction is out, from the pod, or in. Who is app or proxy, when out.
	Direction string `json:"direction"`
	Who       string `json:"who,omitempty"`
	Proto     string `json:"proto"`
	// Src may be empty; Dst is required.
	Src  string `json:"src,omitempty"`
	Dst  string `json:"dst"`
	Port uint16 `json:"port"`
	// UID is the user that sends, when out; nil: that of Who.
	UID *uint32 `json:"uid,omitempty"`
}

// Way is what becomes of a connection.
type Way struct {
	// Class is mesh, direct, onward (by the proxy itself), dropped or broken.
	Class string `json:"class"`
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
	dst, err := addr(c.Dst, netip.Addr{})
	if err == nil && !dst.IsValid() {
		err = errors.New("an address is wanted, such as 10.96.5.5")
	}
	fail("destination", err)
	src, err := addr(c.Src, netip.Addr{})
	fail("source", err)
	if c.Port == 0 {
		fail("port", errors.New("want 1 to 65535"))
	}
	if err := errors.Join(errs...); err != nil {
		return trace.Packet{}, err
	}
	p := trace.Packet{Direction: trace.Direction(c.Direction), Proto: proto, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, c.Port)}
	switch {
	case p.Direction == trace.Out && c.Who == "proxy":
		p.UID, p.GID, p.Mark = a.proxy()
	case p.Direction == trace.Out:
		p.UID, p.GID = a.Application()
	case p.Direction != trace.In:
		return p, fmt.Errorf("direction %q: not out or in", c.Direction)
	}
	if c.UID != nil && p.Direction == trace.Out {
		p.UID = *c.UID
	}
	return p, nil
}

// proxy is who the proxy is for the rules.
func (a *asked) proxy() (uid, gid, mark uint32) {
	uid, gid = a.Application()
	if p := a.Redirect.Proxy; a.Decision.Selected {
		if len(p.UIDs) > 0 {
			uid = p.UIDs[0]
		}
		if len(p.GIDs) > 0 {
			gid = p.GIDs[0]
		}
		mark = p.Mark.Value
	}
	return uid, gid, mark
}

func (a *asked) trace(c Connection) (Way, error) {
	if a.explanation.Refused != nil {
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
	w.Class, w.Said = a.class(got)
	if uid, gid, mark := a.proxy(); w.Class == "direct" && a.Decision.Selected && p.Direction == trace.Out && p.UID == uid && p.GID == gid && p.Mark == mark {
		w.Class, w.Said = "onward", "straight to where it is sent"
	}
	return w, nil
}

// class says in a word and in a sentence how a connection ends.
func (a *asked) class(c trace.Conversation) (class, said string) {
	switch c.Verdict {
	case trace.Dropped:
		return "dropped", "dropped: nobody gets it"
	case trace.Established:
	case trace.Refused:
		return "broken", "refused: nobody listens where it arrives"
	case trace.AnswerLost:
		return "broken", "the answer gets lost on its way back"
	case trace.Lost:
		return "broken", "a later packet gets lost"
	case trace.WrongPeer:
		return "broken", "an answer comes as if from somebody else, and is not taken"
	case trace.Loop:
		return "broken", "it goes round in a circle: the proxy's own connection comes back to the proxy"
	}
	if c.Server.Pod && a.isProxy(c.Server.Port) {
		return "mesh", fmt.Sprintf("to the proxy, port %d", c.Server.Port)
	}
	if c.Server.Local != c.Client.Peer && len(c.Packets) > 0 && c.Packets[0].Verdict == trace.Redirect {
		return "mesh", "to " + c.Packets[0].ToAddr.String()
	}
	return "direct", "direct, past the proxy"
}

func (a *asked) isProxy(port uint16) bool {
	for _, l := range a.Listeners(ruleset.IPv4) {
		if l.Port != 0 && l.Port == port {
			return true
		}
	}
	return false
}
