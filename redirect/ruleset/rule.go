package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// Rule is one rule: every match that is set must hold for the target to act.
// The zero Rule matches every packet and does nothing.
type Rule struct {
	Src, Dst PrefixMatch
	In, Out  InterfaceMatch
	Proto    Proto
	// SrcPorts and DstPorts need Proto to be TCP or UDP.
	SrcPorts, DstPorts PortMatch
	// SrcType and DstType match what kind of address Src and Dst are.
	SrcType, DstType AddrType
	// States are conntrack states, any of which matches; 0 matches all.
	States States
	// Mark is the packet's, ConnMark its connection's.
	Mark, ConnMark MarkMatch
	// MarkFirst writes the match of the packet's mark before that of the ports, as a program does that compares its rules as
	// text. It changes no packet's fate; Equal ignores it, and nothing read has it.
	MarkFirst bool
	// Owner matches hold only in OUTPUT and POSTROUTING; all must hold.
	Owner  []OwnerMatch
	Target Target
	// Comment gives the rule's reason. Equal ignores it, and iptables never gets it,
	// because not every kernel has the comment match (gVisor lacks it).
	Comment string
}

// Equal reports whether two rules match and do the same.
func (r Rule) Equal(o Rule) bool {
	return r.Src.equal(o.Src) && r.Dst.equal(o.Dst) && r.In == o.In && r.Out == o.Out &&
		r.Proto == o.Proto && equalPorts(r.SrcPorts, o.SrcPorts) && equalPorts(r.DstPorts, o.DstPorts) &&
		r.SrcType == o.SrcType && r.DstType == o.DstType && r.States == o.States && r.Mark == o.Mark && r.ConnMark == o.ConnMark &&
		equalOwners(r.Owner, o.Owner) && r.Target == o.Target
}

// equalOwners compares what the matches demand.
func equalOwners(a, b []OwnerMatch) bool {
	return slices.Equal(a, b) ||
		slices.Equal(slices.DeleteFunc(slices.Clone(a), OwnerMatch.IsZero), slices.DeleteFunc(slices.Clone(b), OwnerMatch.IsZero))
}

func equalPorts(a, b PortMatch) bool { return a.Not == b.Not && slices.Equal(a.Ranges, b.Ranges) }

// Action is a target's effect.
type Action uint8

// The actions. A final one ends the packet's walk through the table's chains; after any
// other the packet goes on with the next rule.
const (
	// ActionNone only counts packets.
	ActionNone Action = iota
	// ActionAccept lets the packet pass this table's chains. Final.
	ActionAccept
	// ActionDrop discards the packet. Final.
	ActionDrop
	// ActionReturn goes back to the calling chain; in a built-in chain, accepts.
	ActionReturn
	// ActionJump walks the chain Target.Chain, then comes back.
	ActionJump
	// ActionRedirect rewrites the destination to the host's own address and Target.Port. NAT table only. Final.
	ActionRedirect
	// ActionDNAT rewrites the destination to Target.To, whose port 0 keeps the packet's. NAT table only. Final.
	ActionDNAT
	// ActionTProxy gives the packet to the local socket on Target.Port without
	// rewriting it, and sets the packet's mark. Mangle PREROUTING only. Final.
	ActionTProxy
	// ActionSetMark sets the packet's mark to Target.Mark in all bits.
	ActionSetMark
	// ActionSaveMark copies the packet's mark to the connection.
	ActionSaveMark
	// ActionRestoreMark copies the connection's mark to the packet.
	ActionRestoreMark
	// ActionZone puts the packet's connection in the conntrack zone Target.Zone,
	// unless an earlier rule chose one. Raw table only.
	ActionZone
	// ActionSetConnMark sets the bits of Target.Mask in the connection's mark to those of Target.Mark.
	ActionSetConnMark
	// ActionLog has the kernel log the packet with Target.Prefix, at Target.Level.
	ActionLog
	// ActionNoTrack keeps the packet from connection tracking, so that the nat table does not see it. Raw table only.
	ActionNoTrack
	// ActionUnknown is that of [LiveRule.Known] where the rule's own is not known.
	ActionUnknown Action = 0xff
)

var actionNames = [...]string{
	ActionNone: "", ActionAccept: "accept", ActionDrop: "drop", ActionReturn: "return", ActionJump: "jump", ActionRedirect: "redirect", ActionDNAT: "dnat", ActionTProxy: "tproxy",
	ActionSetMark: "set-mark", ActionSaveMark: "save-mark", ActionRestoreMark: "restore-mark", ActionZone: "zone", ActionSetConnMark: "set-conn-mark", ActionLog: "log",
	ActionNoTrack: "notrack",
}

// String returns for example "redirect". [ActionNone] is the empty string.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "action(" + strconv.Itoa(int(a)) + ")"
}

// Target is a rule's effect on the packets it matches. Only the fields that
// its Action names are used; the others are zero.
type Target struct {
	Action Action
	Chain  string
	Port   uint16
	Mark   uint32
	Zone   uint16
	To     netip.AddrPort
	// Mask is SetConnMark's.
	Mask uint32
	// Prefix, at most 29 bytes, and Level, syslog's 0 to 7, are Log's.
	Prefix string
	Level  uint8
}

// Text returns the rule's matches and target as iptables-save prints them, without the leading "-A CHAIN". Of several prefixes it has the
// first eight, and of more ports than fit one match of iptables the first fifteen; how many follow is said, in words that iptables does not
// take.
func (r Rule) Text(f Family) string {
	if len(r.Src.More)+len(r.Dst.More) == 0 && len(r.SrcPorts.Ranges)+len(r.DstPorts.Ranges) <= 2 {
		return string(r.append(nil, f))
	}
	left := func(n int, what string) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf(",(%d more %s)", n, what)
	}
	cut := r
	var src, dst, sport, dport string
	for _, m := range []struct {
		*PrefixMatch
		more *string
	}{{&cut.Src, &src}, {&cut.Dst, &dst}} {
		n := min(len(m.More), shownPrefixes-1)
		*m.more, m.More = left(len(m.More)-n, "prefixes"), m.More[:n]
	}
	for _, m := range []struct {
		*PortMatch
		more *string
	}{{&cut.SrcPorts, &sport}, {&cut.DstPorts, &dport}} {
		if slots(m.Ranges) > chains.MaxPortSlots {
			n := min(len(m.Ranges), chains.MaxPortSlots)
			*m.more, m.Ranges = left(len(m.Ranges)-n, "ports"), m.Ranges[:n]
		}
	}
	return string(cut.appendCut(nil, f, src, dst, sport, dport))
}

// shownPrefixes is how many prefixes of a match are shown.
const shownPrefixes = 8

// slots counts the slots of a multiport match that ports take.
func slots(ranges []PortRange) (n int) {
	for _, r := range ranges {
		n++
		if r.First != r.Last {
			n++
		}
	}
	return n
}

// full is the text with all prefixes and ports, for [ParseRule] to read.
func (r Rule) full(f Family) string { return string(r.append(nil, f)) }

// append writes the rule in iptables-save's own order, so that the text of a
// program and that of the live rules are the same, line for line.
func (r *Rule) append(b []byte, f Family) []byte { return r.appendCut(b, f, "", "", "", "") }

// appendCut is append with what is to follow the lists.
func (r *Rule) appendCut(b []byte, f Family, src, dst, sport, dport string) []byte {
	b = appendPrefix(b, "-s ", r.Src, src)
	b = appendPrefix(b, "-d ", r.Dst, dst)
	b = appendInterface(b, "-i ", r.In)
	b = appendInterface(b, "-o ", r.Out)
	if r.Proto != AnyProto {
		b = append(append(append(b, "-p "...), r.Proto.String()...), ' ')
	}
	if r.MarkFirst {
		b = appendMark(b, "-m mark ", r.Mark)
	}
	b = r.appendPorts(b, sport, dport)
	if r.SrcType != 0 || r.DstType != 0 {
		b = append(b, "-m addrtype "...)
		b = appendAddrType(b, "--src-type", r.SrcType)
		b = appendAddrType(b, "--dst-type", r.DstType)
	}
	if r.States != 0 {
		b = append(b, "-m conntrack --ctstate "...)
		b = append(appendStates(b, r.States), ' ')
	}
	if !r.MarkFirst {
		b = appendMark(b, "-m mark ", r.Mark)
	}
	b = appendMark(b, "-m connmark ", r.ConnMark)
	for _, o := range r.Owner {
		if o.IsZero() {
			continue
		}
		b = appendNot(append(b, "-m owner "...), o.Not)
		b = strconv.AppendUint(append(b, o.Kind.flag()...), uint64(o.First), 10)
		if o.Last != o.First {
			b = strconv.AppendUint(append(b, '-'), uint64(o.Last), 10)
		}
		b = append(b, ' ')
	}
	b = appendTarget(b, r.Target, f)
	if n := len(b); n > 0 && b[n-1] == ' ' {
		b = b[:n-1]
	}
	return b
}

func appendNot(b []byte, not bool) []byte {
	if not {
		return append(b, "! "...)
	}
	return b
}

func appendPrefix(b []byte, flag string, m PrefixMatch, more string) []byte {
	if m.IsZero() {
		return b
	}
	b = m.Prefix.AppendTo(append(appendNot(b, m.Not), flag...))
	for _, p := range m.More {
		b = p.AppendTo(append(b, ','))
	}
	return append(append(b, more...), ' ')
}

func appendInterface(b []byte, flag string, m InterfaceMatch) []byte {
	if m.IsZero() {
		return b
	}
	return append(append(append(appendNot(b, m.Not), flag...), m.Name...), ' ')
}

func appendAddrType(b []byte, flag string, t AddrType) []byte {
	if t == 0 {
		return b
	}
	return append(append(appendNot(b, t == AddrTypeNotLocal), flag...), " LOCAL "...)
}

func appendMark(b []byte, module string, m MarkMatch) []byte {
	if m.IsZero() {
		return b
	}
	b = appendNot(append(b, module...), m.Not)
	b = appendHex(append(b, "--mark "...), m.Value)
	if m.Mask != FullMask {
		b = appendHex(append(b, '/'), m.Mask)
	}
	return append(b, ' ')
}

func appendHex(b []byte, v uint32) []byte {
	return strconv.AppendUint(append(b, "0x"...), uint64(v), 16)
}

func appendStates(b []byte, s States) []byte {
	first := true
	for i, n := range stateNames {
		if s&(1<<i) == 0 {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		b, first = append(b, n...), false
	}
	return b
}

// appendPorts uses the protocol's own match for one port or range and multiport for more, as iptables does.
func (r *Rule) appendPorts(b []byte, sport, dport string) []byte {
	single := func(m PortMatch) bool { return len(m.Ranges) == 1 }
	if single(r.SrcPorts) || single(r.DstPorts) {
		b = append(append(append(b, "-m "...), r.Proto.String()...), ' ')
		if single(r.SrcPorts) {
			b = appendPortFlag(b, "--sport ", r.SrcPorts, "")
		}
		if single(r.DstPorts) {
			b = appendPortFlag(b, "--dport ", r.DstPorts, "")
		}
	}
	if len(r.SrcPorts.Ranges) > 1 {
		b = appendPortFlag(append(b, "-m multiport "...), "--sports ", r.SrcPorts, sport)
	}
	if len(r.DstPorts.Ranges) > 1 {
		b = appendPortFlag(append(b, "-m multiport "...), "--dports ", r.DstPorts, dport)
	}
	return b
}

func appendPortFlag(b []byte, flag string, m PortMatch, more string) []byte {
	b = append(appendNot(b, m.Not), flag...)
	for i, r := range m.Ranges {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(r.First), 10)
		if r.Last != r.First {
			b = strconv.AppendUint(append(b, ':'), uint64(r.Last), 10)
		}
	}
	return append(append(b, more...), ' ')
}

// appendWord writes a string as libxtables' xtables_save_string does: in quotes,
// with escapes, unless it is made of harmless characters only.
func appendWord(b []byte, s string) []byte {
	harmless := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !harmless(c) }) {
		return append(b, s...)
	}
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		if c := s[i]; c == '"' || c == '\\' || c == '\'' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
