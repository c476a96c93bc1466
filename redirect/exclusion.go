package redirect

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Loopback tells how to treat connections within the pod, which leave by its
// loopback interface. Those to Redirect.Localhost and ::1 always pass.
type Loopback string

// The loopback modes.
const (
	// LoopbackHairpin, the zero value, passes the application's connections to its own pod. The proxy's connections to
	// it are inbound: the proxy chose its own pod for a service that the application called.
	LoopbackHairpin Loopback = ""
	// LoopbackPass passes everything, DNS queries included. (If the proxy is known by
	// its mark, DNS queries over TCP to the pod's own addresses are still captured.)
	LoopbackPass Loopback = "pass"
	// LoopbackCapture redirects the application's connections to its own pod like any
	// other outbound connection, and passes the proxy's.
	LoopbackCapture Loopback = "capture"
)

// Mark is a packet mark and its mask. The zero value is no mark.
type Mark struct {
	Value uint32 `json:"value"`
	// Mask selects the bits that are compared; 0 means all.
	Mask uint32 `json:"mask,omitempty"`
}

// IsZero reports whether there is no mark.
func (m Mark) IsZero() bool { return m == Mark{} }

// String returns the mark as iptables takes it: "0x539/0xfff".
func (m Mark) String() string {
	s := fmt.Sprintf("%#x", m.Value)
	if m.Mask != 0 && m.Mask != ruleset.FullMask {
		s += fmt.Sprintf("/%#x", m.Mask)
	}
	return s
}

// fullMask reads mask 0 as all bits.
func fullMask(mask uint32) uint32 {
	if mask == 0 {
		return ruleset.FullMask
	}
	return mask
}

func (m Mark) match(not bool) ruleset.MarkMatch {
	return ruleset.MarkMatch{Value: m.Value, Mask: fullMask(m.Mask), Not: not}
}

// IDRange is an inclusive range of user ids.
type IDRange struct{ First, Last uint32 }

// String returns "1000" or "1000-2000".
func (r IDRange) String() string {
	s := strconv.FormatUint(uint64(r.First), 10)
	if r.Last != r.First {
		s += "-" + strconv.FormatUint(uint64(r.Last), 10)
	}
	return s
}

// ParseIDRange parses "1000" or "1000-2000". Ids are from 0 to 4294967294.
func ParseIDRange(s string) (IDRange, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 32)
	b, err2 := strconv.ParseUint(last, 10, 32)
	switch {
	case err1 != nil || err2 != nil || a == uint64(NoID) || b == uint64(NoID):
		return IDRange{}, fmt.Errorf("%s is not an id from 0 to %d, nor a range of two", truncate.Quote(s), uint32(NoID-1))
	case b < a:
		return IDRange{}, fmt.Errorf("range %s ends before it begins", truncate.Quote(s))
	}
	return IDRange{uint32(a), uint32(b)}, nil
}

// MarshalText writes what String returns.
func (r IDRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (r *IDRange) UnmarshalText(b []byte) (err error) {
	*r, err = ParseIDRange(string(b))
	return err
}

// Protocol is a transport protocol of an [Exclusion]: "tcp", "udp" or, for both and all others, "".
type Protocol string

// The protocols.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

var protos = map[Protocol]ruleset.Proto{TCP: ruleset.TCP, UDP: ruleset.UDP}

func (p Protocol) proto() ruleset.Proto { return protos[p] }

// Exclusion is outbound traffic that is left alone, if all fields match it. At least one field must narrow it.
type Exclusion struct {
	Protocol Protocol `json:"protocol,omitempty"`
	// Ports are destination ports. All needs no Protocol; none is not allowed, since it would exclude nothing.
	Ports PortSet `json:"ports"`
	// UIDs are the users that own the sending socket; empty means any.
	UIDs []IDRange `json:"uids,omitempty"`
	// CIDRs are destinations. None is not allowed, since it would exclude nothing.
	CIDRs PrefixSet `json:"cidrs"`
}

// String returns for example "tcp ports 22 of uid 1000-2000".
func (e Exclusion) String() string {
	var parts []string
	if e.Protocol != "" {
		parts = append(parts, string(e.Protocol))
	}
	if !e.Ports.All() {
		parts = append(parts, "ports "+e.Ports.String())
	}
	if !e.CIDRs.All() {
		parts = append(parts, "to "+e.CIDRs.String())
	}
	for i, r := range e.UIDs {
		parts = append(parts, []string{"of uid ", "and "}[min(i, 1)]+r.String())
	}
	return strings.Join(parts, " ")
}

// VirtualNetwork is the network behind an interface of the pod that leads to virtual machines or
// nested containers. TCP that comes in by the interface counts as the pod's outbound traffic,
// unless it is for an address in Local. So do DNS queries, if they are captured.
type VirtualNetwork struct {
	Interface string       `json:"interface"`
	Local     netip.Prefix `json:"local"`
}

// Log configures the logging of connections, before the other rules of each
// direction. A line begins with the chain's name.
type Log struct {
	Enabled bool `json:"enabled"`
	// Level is syslog's, 0 (emergency) to 7 (debug).
	Level uint8 `json:"level"`
}
