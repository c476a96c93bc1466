package trace

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

var stateNames = map[ruleset.States]string{
	ruleset.StateInvalid: "invalid", ruleset.StateNew: "new", ruleset.StateRelated: "related",
	ruleset.StateEstablished: "established", ruleset.StateUntracked: "untracked",
}

// String returns the packet in one line, such as
// "out tcp uid 1000 gid 1000 -> 10.0.0.1:443". [ParsePacket] reads it back.
func (p Packet) String() string {
	s := string(p.Direction) + " " + p.Proto.String()
	if p.Direction == Out {
		s += fmt.Sprintf(" uid %d gid %d", p.UID, p.GID)
	}
	if p.Src.Addr().IsValid() {
		s += " from " + p.Src.String()
	}
	s += " -> " + p.Dst.String()
	if p.InInterface != "" {
		s += " in " + p.InInterface
	}
	if p.OutInterface != "" {
		s += " out " + p.OutInterface
	}
	if p.Mark != 0 {
		s += fmt.Sprintf(" mark %#x", p.Mark)
	}
	if p.ConnMark != 0 {
		s += fmt.Sprintf(" connmark %#x", p.ConnMark)
	}
	if name, ok := stateNames[p.State]; ok {
		s += " state " + name
	}
	return s
}

// ParsePacket reads a packet as a line of words: the direction, the protocol, then "-> ADDR:PORT" and, in any order,
// "uid N", "gid N", "from ADDR" or "from ADDR:PORT", "in INTERFACE", "out INTERFACE", "mark N", "connmark N" and "state
// new", "invalid", "related", "established" or "untracked":
//
//	out tcp uid 1000 -> 10.0.0.1:443
//	in udp from 10.0.0.9 -> [fd00::5]:53 in net1
func ParsePacket(s string) (Packet, error) {
	words := strings.Fields(s)
	p, err := parseWords(words)
	if err != nil {
		return Packet{}, fmt.Errorf("packet %q: %w", s, err)
	}
	return p, nil
}

func parseWords(words []string) (p Packet, err error) {
	if len(words) < 4 || len(words)%2 != 0 {
		return p, fmt.Errorf("want \"out|in PROTOCOL -> ADDR:PORT\" and pairs of a word and its value")
	}
	p.Direction = Direction(words[0])
	if p.Direction != Out && p.Direction != In {
		return p, fmt.Errorf("direction %q is not out or in", words[0])
	}
	if p.Proto, err = ParseProto(words[1]); err != nil {
		return p, err
	}
	for i := 2; i < len(words); i += 2 {
		if err := p.set(words[i], words[i+1]); err != nil {
			return p, fmt.Errorf("%s %s: %w", words[i], words[i+1], err)
		}
	}
	if !p.Dst.IsValid() {
		return p, fmt.Errorf("it has no destination")
	}
	return p, nil
}

func (p *Packet) set(word, value string) (err error) {
	number := func(to *uint32) {
		var n uint64
		n, err = strconv.ParseUint(value, 0, 32)
		*to = uint32(n)
	}
	switch word {
	case "->":
		p.Dst, err = netip.ParseAddrPort(value)
	case "from":
		var a netip.Addr
		if a, err = netip.ParseAddr(value); err == nil {
			p.Src = netip.AddrPortFrom(a, 0)
			return nil
		}
		p.Src, err = netip.ParseAddrPort(value)
	case "in":
		p.InInterface = value
	case "out":
		p.OutInterface = value
	case "uid":
		number(&p.UID)
	case "gid":
		number(&p.GID)
	case "mark":
		number(&p.Mark)
	case "connmark":
		number(&p.ConnMark)
	case "state":
		var ok bool
		if p.State, ok = stateOf(value); !ok {
			err = fmt.Errorf("no such state")
		}
	default:
		err = fmt.Errorf("unknown word")
	}
	return err
}
