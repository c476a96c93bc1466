package rulesettest

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// TB is what this package uses of [testing.TB].
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Rules is a program under test. Make one with [New].
type Rules struct {
	tb       TB
	rules    ruleset.Ruleset
	podAddrs []netip.Addr
}

// New starts assertions on a program. The pod's addresses tell which packets stay within the pod; with none of a family
// given, each packet that comes in is taken to be for the pod. A malformed address ends the test.
func New(tb TB, rs ruleset.Ruleset, podAddrs ...string) *Rules {
	tb.Helper()
	r := &Rules{tb: tb, rules: rs}
	for _, s := range podAddrs {
		a, err := netip.ParseAddr(s)
		if err != nil {
			tb.Fatalf("pod's address: %v", err)
		}
		r.podAddrs = append(r.podAddrs, a)
	}
	return r
}

// Packet is a packet in the making. Its methods return changed copies, so one packet can begin several.
type Packet struct {
	rules  *Rules
	packet trace.Packet
}

// Out begins a TCP packet that a process in the pod, root unless changed,
// sends to a destination such as "10.0.0.1:443".
func (r *Rules) Out(dst string) Packet {
	r.tb.Helper()
	return r.packet(trace.Out, dst)
}

// In begins a TCP packet that reaches the pod by eth0, unless changed.
func (r *Rules) In(dst string) Packet {
	r.tb.Helper()
	return r.packet(trace.In, dst)
}

func (r *Rules) packet(d trace.Direction, dst string) Packet {
	r.tb.Helper()
	a, err := netip.ParseAddrPort(dst)
	if err != nil {
		r.tb.Fatalf("packet's destination: %v", err)
	}
	return Packet{r, trace.Packet{Direction: d, Proto: ruleset.TCP, Dst: a, PodAddrs: r.podAddrs}}
}

// UDP makes it a datagram.
func (p Packet) UDP() Packet { p.packet.Proto = ruleset.UDP; return p }

// UID sets the user that owns the sending socket.
func (p Packet) UID(uid uint32) Packet { p.packet.UID = uid; return p }

// GID sets the group that owns the sending socket.
func (p Packet) GID(gid uint32) Packet { p.packet.GID = gid; return p }

// By sets the interface that the packet comes in by, or would go out by.
func (p Packet) By(name string) Packet {
	if p.packet.Direction == trace.In {
		p.packet.InInterface = name
	} else {
		p.packet.OutInterface = name
	}
	return p
}

// From sets the source, an address or "address:port".
func (p Packet) From(src string) Packet {
	p.rules.tb.Helper()
	if a, err := netip.ParseAddr(src); err == nil {
		p.packet.Src = netip.AddrPortFrom(a, 0)
		return p
	}
	a, err := netip.ParseAddrPort(src)
	if err != nil {
		p.rules.tb.Fatalf("packet's source: %v", err)
	}
	p.packet.Src = a
	return p
}

// Mark sets the packet's mark, as SO_MARK does.
func (p Packet) Mark(mark uint32) Packet { p.packet.Mark = mark; return p }

// State sets what connection tracking holds the packet to be; without it, the first of its connection.
func (p Packet) State(s ruleset.States) Packet { p.packet.State = s; return p }

// RedirectedTo fails the test unless the packet is redirected to the local port.
func (p Packet) RedirectedTo(port uint16) trace.Result {
	p.rules.tb.Helper()
	return p.rules.check(p.packet, fmt.Sprintf("redirect %d", port))
}

// RedirectedToAddr fails the test unless the packet's destination is rewritten to one such as "127.0.0.1:8600".
func (p Packet) RedirectedToAddr(to string) trace.Result {
	p.rules.tb.Helper()
	return p.rules.check(p.packet, "redirect "+to)
}

// TProxiedTo fails the test unless the transparent listener on the port gets the packet.
func (p Packet) TProxiedTo(port uint16) trace.Result {
	p.rules.tb.Helper()
	return p.rules.check(p.packet, fmt.Sprintf("tproxy %d", port))
}

// Passes fails the test unless the packet goes where it was sent.
func (p Packet) Passes() trace.Result {
	p.rules.tb.Helper()
	return p.rules.check(p.packet, "pass")
}

// Dropped fails the test unless the packet is discarded.
func (p Packet) Dropped() trace.Result {
	p.rules.tb.Helper()
	return p.rules.check(p.packet, "drop")
}

// Table checks packets, one a line: the packet as [trace.ParsePacket] reads it, "=>", and the
// verdict: "pass", "drop", "redirect PORT", "redirect ADDR:PORT" or "tproxy PORT". Empty lines, and
// what follows '#', do not count. Every line is tried; a line that cannot be read is a failure.
func (r *Rules) Table(text string) {
	r.tb.Helper()
	n, tried := 0, 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		tried++
		packet, want, ok := strings.Cut(line, "=>")
		p, err := trace.ParsePacket(strings.TrimSpace(packet))
		if !ok || err != nil {
			r.tb.Errorf("line %d of the table: %q is no \"packet => verdict\": %v", n, strings.TrimSpace(line), err)
			continue
		}
		p.PodAddrs = r.podAddrs
		r.check(p, strings.Join(strings.Fields(want), " "))
	}
	if tried == 0 {
		r.tb.Errorf("the table has no packet")
	}
}

func (r *Rules) check(p trace.Packet, want string) trace.Result {
	r.tb.Helper()
	result, err := trace.Trace(r.rules, p)
	switch {
	case err != nil:
		r.tb.Errorf("%s\n  want: %s\n  got:  %v", p, want, err)
	case result.String() != want:
		r.tb.Errorf("%s\n  want: %s\n  got:  %s", p, want, indent(result.Explain()))
	}
	return result
}

func indent(s string) string {
	return strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n      ")
}
