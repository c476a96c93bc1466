package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Direction is a packet's origin. The zero value is invalid.
type Direction string

// The directions.
const (
	// Out is from a process in the pod.
	Out Direction = "out"
	// In is from outside the pod, by InInterface.
	In Direction = "in"
)

// Packet is a packet to trace: the first of its connection, unless State says
// otherwise. Direction, Proto and Dst's address are required.
type Packet struct {
	Direction Direction
	Proto     ruleset.Proto
	// Src is optional. An Out packet without one gets the source that the kernel would choose: the
	// destination if it is the pod's own, else the family's first of PodAddrs. If a rule needs a
	// source that is unknown, tracing fails. Port 0 is a port that no rule names.
	Src, Dst netip.AddrPort
	// UID and GID own the sending socket; Out only.
	UID, GID uint32
	// InInterface receives an In packet; default "eth0".
	InInterface string
	// OutInterface would send an Out packet or a forwarded one; default
	// "eth0". Packets to loopback addresses and PodAddrs always leave by lo.
	OutInterface string
	// Mark is the packet's mark, as set by SO_MARK.
	Mark uint32
	// ConnMark is the mark of the packet's connection, 0 for a first packet.
	ConnMark uint32
	// State is the packet's conntrack state; default StateNew. Only new packets meet the nat table.
	State ruleset.States
	// PodAddrs are the pod's own addresses. Without one of the family, In packets
	// count as addressed to the pod, and only loopback addresses as its own.
	PodAddrs []netip.Addr
}

// packetJSON is the form of a line for meshcni-redirect trace.
type packetJSON struct {
	Direction    Direction  `json:"direction"`
	Proto        string     `json:"proto"`
	Src          netip.Addr `json:"src,omitzero"`
	Dst          netip.Addr `json:"dst"`
	Sport        uint16     `json:"sport,omitempty"`
	Dport        uint16     `json:"dport,omitempty"`
	UID          uint32     `json:"uid"`
	GID          uint32     `json:"gid"`
	InInterface  string     `json:"in_interface,omitempty"`
	OutInterface string     `json:"out_interface,omitempty"`
	Mark         uint32     `json:"mark,omitempty"`
	State        string     `json:"state,omitempty"`
}

// UnmarshalJSON parses {"direction","proto","src","dst","sport","dport","uid","gid",
// "in_interface","out_interface","mark","state"}. Absent fields get the defaults of [Packet],
// and unknown ones are an error. State is new, established, related, invalid or untracked. PodAddrs, ConnMark and an
// absent State stay as they were.
func (p *Packet) UnmarshalJSON(b []byte) error {
	var in packetJSON
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return fmt.Errorf("packet from JSON: %w", err)
	}
	proto, err := ParseProto(in.Proto)
	if err != nil {
		return fmt.Errorf("packet from JSON: %w", err)
	}
	if in.State != "" {
		state, ok := stateOf(in.State)
		if !ok {
			return fmt.Errorf("packet from JSON: state %q is not new, established, related, invalid or untracked", in.State)
		}
		p.State = state
	}
	p.Direction, p.Proto = in.Direction, proto
	p.Src, p.Dst = netip.AddrPortFrom(in.Src, in.Sport), netip.AddrPortFrom(in.Dst, in.Dport)
	p.UID, p.GID, p.Mark = in.UID, in.GID, in.Mark
	p.InInterface, p.OutInterface = in.InInterface, in.OutInterface
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (p Packet) MarshalJSON() ([]byte, error) {
	return json.Marshal(packetJSON{
		Direction: p.Direction, Proto: p.Proto.String(),
		Src: p.Src.Addr(), Sport: p.Src.Port(), Dst: p.Dst.Addr(), Dport: p.Dst.Port(),
		UID: p.UID, GID: p.GID, Mark: p.Mark,
		InInterface: p.InInterface, OutInterface: p.OutInterface, State: stateNames[p.State&^ruleset.StateNew], // a first packet has none
	})
}

func stateOf(name string) (ruleset.States, bool) {
	for state, n := range stateNames {
		if n == name {
			return state, true
		}
	}
	return 0, false
}

// ParseProto reads "tcp", "udp" or a protocol's number from 1 to 255.
func ParseProto(s string) (ruleset.Proto, error) {
	switch s {
	case "tcp":
		return ruleset.TCP, nil
	case "udp":
		return ruleset.UDP, nil
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("protocol %q is not tcp, udp or a number from 1 to 255", s)
	}
	return ruleset.Proto(n), nil
}

// clean checks the packet and puts defaults in.
func (p Packet) clean() (Packet, error) {
	plain := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
	}
	p.Src, p.Dst = plain(p.Src), plain(p.Dst)
	switch {
	case p.Direction != Out && p.Direction != In:
		return p, fmt.Errorf("packet: direction %q is not out or in", p.Direction)
	case p.Proto == ruleset.AnyProto:
		return p, fmt.Errorf("packet: it has no protocol")
	case !p.Dst.Addr().IsValid():
		return p, fmt.Errorf("packet: it has no destination")
	case p.Src.Addr().IsValid() && ruleset.FamilyOf(p.Src.Addr()) != ruleset.FamilyOf(p.Dst.Addr()):
		return p, fmt.Errorf("packet: source %s and destination %s are of different families", p.Src.Addr(), p.Dst.Addr())
	}
	switch p.State {
	case 0:
		p.State = ruleset.StateNew
	case ruleset.StateInvalid, ruleset.StateNew, ruleset.StateRelated, ruleset.StateEstablished, ruleset.StateUntracked:
	default:
		return p, fmt.Errorf("packet: state %#x is not one state", uint8(p.State))
	}
	if p.InInterface == "" {
		p.InInterface = defaultInterface
	}
	if p.OutInterface == "" {
		p.OutInterface = defaultInterface
	}
	return p, nil
}

const (
	defaultInterface = "eth0"
	loopback         = "lo"
)
