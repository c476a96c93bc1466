package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/prefixes"
)

// Family is an address family. The zero value is invalid.
type Family uint8

// The address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families, IPv4 first: the order of everything here.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address is IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "ipv4" or "ipv6".
func (f Family) String() string {
	switch f {
	case IPv4:
		return "ipv4"
	case IPv6:
		return "ipv6"
	}
	return "family(" + strconv.Itoa(int(f)) + ")"
}

// Bits is the length of an address of the family, in bits.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// Table is a netfilter table. Their order is that of their hooks' priorities, lowest (first to see a packet) first.
type Table uint8

// The tables that a mesh's rules use.
const (
	Raw Table = iota
	Mangle
	NAT
	Filter
)

// Tables lists the tables in canonical order.
var Tables = [...]Table{Raw, Mangle, NAT, Filter}

var tableNames = [...]string{"raw", "mangle", "nat", "filter"}

// String returns the table's name as iptables knows it.
func (t Table) String() string {
	if int(t) < len(tableNames) {
		return tableNames[t]
	}
	return "table(" + strconv.Itoa(int(t)) + ")"
}

// ParseTable is the inverse of [Table.String].
func ParseTable(s string) (Table, error) {
	for i, n := range tableNames {
		if n == s {
			return Table(i), nil
		}
	}
	return 0, fmt.Errorf("table %q: not one of raw, mangle, nat, filter", s)
}

// The built-in chains, each the entry of a netfilter hook.
const (
	Prerouting  = "PREROUTING"
	Input       = "INPUT"
	Forward     = "FORWARD"
	Output      = "OUTPUT"
	Postrouting = "POSTROUTING"
)

// Proto is a transport protocol. The zero value, [AnyProto], matches all.
type Proto uint8

// Protocol numbers, as assigned by IANA.
const (
	AnyProto Proto = 0
	TCP      Proto = 6
	UDP      Proto = 17
)

// String returns "tcp", "udp", "all" or the protocol's number.
func (p Proto) String() string {
	switch p {
	case AnyProto:
		return "all"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return strconv.Itoa(int(p))
}

// PrefixMatch matches an address of the packet. The zero value matches any.
type PrefixMatch struct {
	Prefix netip.Prefix
	Not    bool
	// More are further prefixes of the family, for a match of an address in any of them: with Prefix before them they are in order, have no
	// host bits, and none is within another. A match with Not has none. nftables has them in one set, and iptables has a rule for each; see
	// [Ruleset.Iptables]. [MatchPrefix] makes them.
	More []netip.Prefix
}

// MatchPrefix matches addresses in any of the prefixes, which are of one family. One of length 0 matches any address, so that it yields the
// zero value (as iptables-save prints nothing for it), and so does no prefix.
func MatchPrefix(list ...netip.Prefix) PrefixMatch {
	if len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return PrefixMatch{}
	}
	if len(list) == 1 {
		return PrefixMatch{Prefix: list[0].Masked()}
	}
	list = prefixes.Merge(slices.Clone(list)) // a list that stays here costs no allocation
	return PrefixMatch{Prefix: list[0], More: list[1:len(list):len(list)]}
}

// equal reports whether both match the same.
func (m PrefixMatch) equal(o PrefixMatch) bool {
	return m.Prefix == o.Prefix && m.Not == o.Not && slices.Equal(m.More, o.More)
}

// IsZero reports whether m matches any address.
func (m PrefixMatch) IsZero() bool { return !m.Prefix.IsValid() }

// InterfaceMatch matches the interface that a packet came in by or goes out by. The zero value matches any.
type InterfaceMatch struct {
	// Name is the exact name or, with a "+" at its end, the beginning of the name, as iptables has it: "br+" matches br, br0
	// and bridge, with every backend. An interface whose own name ends in "+" cannot be named.
	Name string
	Not  bool
}

// Wildcard returns what the name begins with, and whether it may go on.
func (m InterfaceMatch) Wildcard() (prefix string, ok bool) { return strings.CutSuffix(m.Name, "+") }

// IsZero reports whether m matches any interface.
func (m InterfaceMatch) IsZero() bool { return m.Name == "" }

// Matches reports whether the interface is matched.
func (m InterfaceMatch) Matches(name string) bool {
	is := m.Name == name
	if prefix, ok := m.Wildcard(); ok {
		is = strings.HasPrefix(name, prefix)
	}
	return m.IsZero() || is != m.Not
}

// PortRange is an inclusive range of ports.
type PortRange struct{ First, Last uint16 }

// Port is the range of one port.
func Port(p uint16) PortRange { return PortRange{p, p} }

// Contains reports whether p is in the range.
func (r PortRange) Contains(p uint16) bool { return r.First <= p && p <= r.Last }

// PortMatch matches a port of the packet, and needs the rule's Proto to be TCP or UDP. The zero value matches any. More than 15 ports, of
// which a range counts for two, are one rule of nftables and several of iptables; negated, they are none.
type PortMatch struct {
	Ranges []PortRange
	Not    bool
}

// MatchPorts matches packets to any of the ranges. The single range of all ports
// yields the zero value, as iptables-save prints nothing for it.
func MatchPorts(r ...PortRange) PortMatch {
	if len(r) == 1 && r[0] == (PortRange{0, 65535}) {
		return PortMatch{}
	}
	return PortMatch{Ranges: r}
}

// IsZero reports whether m matches any port.
func (m PortMatch) IsZero() bool { return len(m.Ranges) == 0 }

// States is a set of conntrack states. The zero value matches any.
type States uint8

// The conntrack states, in the order that iptables-save prints them.
const (
	StateInvalid States = 1 << iota
	StateNew
	StateRelated
	StateEstablished
	StateUntracked
)

var stateNames = [...]string{"INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED"}

// String returns the states as iptables prints them: "INVALID,NEW".
func (s States) String() string { return string(appendStates(nil, s)) }

// AddrType matches the type that the routing tables give to an address, of
// which only local is modelled. The zero value matches all.
type AddrType uint8

// The address types.
const (
	// AddrTypeLocal is an address of this host: one of its interfaces', or a loopback address.
	AddrTypeLocal AddrType = iota + 1
	// AddrTypeNotLocal is every other address.
	AddrTypeNotLocal
)

// FullMask is the mask that compares or sets all bits of a mark.
const FullMask uint32 = 0xffffffff

// MarkMatch matches a packet's or connection's mark. The zero value, whose Mask is 0, matches any.
type MarkMatch struct {
	Value, Mask uint32
	Not         bool
}

// IsZero reports whether m matches any mark.
func (m MarkMatch) IsZero() bool { return m.Mask == 0 }

// OwnerKind selects the ID of a socket's owner that is matched. The zero value selects none: it matches every packet, also one
// that no socket sent.
type OwnerKind uint8

// The kinds of owner.
const (
	// OwnerUID is the user of the process that made the socket.
	OwnerUID OwnerKind = iota + 1
	// OwnerGID is its group.
	OwnerGID
)

func (k OwnerKind) flag() string {
	if k == OwnerUID {
		return "--uid-owner "
	}
	return "--gid-owner "
}

// OwnerMatch matches the owner of the sending socket, from First to Last. Packets that no socket
// sent (forwarded ones, and the kernel's resets and echo replies) have no owner. A plain match
// never takes them; a negated one does under iptables, and does not under nftables. The zero value matches any packet.
type OwnerMatch struct {
	Kind        OwnerKind
	First, Last uint32
	Not         bool
}

// OwnerIs matches packets of sockets owned by the id.
func OwnerIs(k OwnerKind, id uint32) OwnerMatch { return OwnerMatch{Kind: k, First: id, Last: id} }

// IsZero reports whether m matches any packet.
func (m OwnerMatch) IsZero() bool { return m.Kind == 0 }
