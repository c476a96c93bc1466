package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Text returns the ruleset as input for nft -f: one transaction that replaces an earlier program of the same owner. It
// is empty if no family has a program. Policy routing, which nftables lacks, is in comments as iproute2 commands.
func Text(rs ruleset.Ruleset) string {
	if rs.IPv4 == nil && rs.IPv6 == nil {
		return ""
	}
	t := Lower(rs)
	var b strings.Builder
	// The declaration makes the deletion work where there is no such table.
	fmt.Fprintf(&b, "table inet %s {}\ndelete table inet %s\n", t.Name, t.Name)
	if len(t.Chains) > 0 {
		fmt.Fprintf(&b, "table inet %s {\n", t.Name)
		for i := range t.Sets {
			t.Sets[i].write(&b)
		}
		for i := range t.Chains {
			if i+len(t.Sets) > 0 {
				b.WriteByte('\n')
			}
			t.Chains[i].write(&b)
		}
		b.WriteString("}\n")
	}
	for _, f := range ruleset.Families {
		if p := rs.Family(f); p != nil {
			for _, l := range p.IPCommands() {
				b.WriteString("# " + l + "\n")
			}
		}
	}
	return b.String()
}

// nftElementsPerLine keeps lists short enough to read in a review.
const nftElementsPerLine = 8

func (s *Set) write(b *strings.Builder) {
	typ := "inet_service"
	var elements []string
	for _, r := range s.Ports {
		elements = append(elements, rangeText(r))
	}
	for _, p := range s.Prefixes {
		typ = "ipv4_addr"
		if p.Addr().Is6() {
			typ = "ipv6_addr"
		}
		elements = append(elements, prefixText(p))
	}
	fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n", s.Name, typ)
	if s.Interval() {
		b.WriteString("\t\tflags interval\n")
	}
	b.WriteString("\t\telements = { ")
	for i, e := range elements {
		switch {
		case i == 0:
		case i%nftElementsPerLine == 0:
			b.WriteString(",\n\t\t             ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(e)
	}
	b.WriteString(" }\n\t}\n")
}

func rangeText(r ruleset.PortRange) string {
	s := strconv.Itoa(int(r.First))
	if r.Last != r.First {
		s += "-" + strconv.Itoa(int(r.Last))
	}
	return s
}

// prefixText leaves out the length of a single address, as nft does.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func (c *Chain) write(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Hook != "" {
		fmt.Fprintf(b, "\t\ttype %s hook %s priority %s; policy accept;\n", c.Type, c.Hook, priorityName(c.Priority, c.Hook))
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		b.WriteString("\t\t" + r.Text())
		if r.Comment != "" {
			b.WriteString(` comment "` + r.KernelComment() + `"`)
		}
		b.WriteByte('\n')
	}
	b.WriteString("\t}\n")
}

var priorityNames = map[string]int{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}

// priorityName uses the names that nft knows since 0.9.1, which is also the first to know NAT in inet tables.
func priorityName(p int32, hook string) string {
	for name, priority := range priorityNames {
		if priority == int(p) && (name != "dstnat" || hook == "prerouting") && (name != "srcnat" || hook == "postrouting") {
			return name
		}
	}
	return strconv.Itoa(int(p))
}

// nftCommentMax is the longest comment of a rule that nft takes, in bytes.
// Source: NFTNL_UDATA_COMMENT_MAXLEN in libnftnl/udata.h, with its final zero.
const nftCommentMax = 127

// KernelComment is the rule's comment in the form that nft takes: a single line without quotes of at most 127 bytes.
func (r *Rule) KernelComment() string {
	s := plain(r.Comment)
	for len(s) > nftCommentMax {
		cut := nftCommentMax
		for cut > 0 && s[cut]&0xc0 == 0x80 {
			cut--
		}
		s = s[:cut]
	}
	return s
}

// plain makes a string fit between quotes, where nft has no escapes.
func plain(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '"':
			return '\''
		case c < ' ' || c == 0x7f:
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
}

// Text returns the rule in nft's words, without its comment.
func (r *Rule) Text() string {
	var w words
	ip := "ip"
	if r.Family == ruleset.IPv6 {
		ip = "ip6"
	}
	if r.Family != 0 && len(r.Srcs)+len(r.Dsts) == 0 {
		w.add("meta nfproto", r.Family.String())
	}
	list(&w, ip+" saddr", r.Src.Not, r.Srcs, prefixText, r.SrcSet)
	list(&w, ip+" daddr", r.Dst.Not, r.Dsts, prefixText, r.DstSet)
	w.iface("iifname", r.In)
	w.iface("oifname", r.Out)
	switch {
	case r.Proto == ruleset.AnyProto:
	case len(r.SrcRanges)+len(r.DstRanges) == 0:
		w.add("meta l4proto", protoName(r.Proto))
	default:
		list(&w, r.Proto.String()+" sport", r.SrcPorts.Not, r.SrcRanges, rangeText, r.SrcPortSet)
		list(&w, r.Proto.String()+" dport", r.DstPorts.Not, r.DstRanges, rangeText, r.DstPortSet)
	}
	w.addrType("fib saddr type", r.SrcType)
	w.addrType("fib daddr type", r.DstType)
	if r.States != 0 {
		w.add("ct state", strings.ToLower(r.States.String()))
	}
	w.mark("meta mark", r.Mark)
	w.mark("ct mark", r.ConnMark)
	for _, o := range r.Owner {
		if o.IsZero() {
			continue
		}
		key := "meta skuid"
		if o.Kind == ruleset.OwnerGID {
			key = "meta skgid"
		}
		ids := strconv.FormatUint(uint64(o.First), 10)
		if o.Last != o.First {
			ids += "-" + strconv.FormatUint(uint64(o.Last), 10)
		}
		w.add(key, negated(o.Not)+ids)
	}
	w.target(r, ip)
	return strings.Join(w, " ")
}

type words []string

func (w *words) add(more ...string) { *w = append(*w, more...) }

func negated(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

// protoName is a number where nft may not know the name.
func protoName(p ruleset.Proto) string {
	if p == ruleset.TCP || p == ruleset.UDP {
		return p.String()
	}
	return strconv.Itoa(int(p))
}

// list adds a match of a set, or of the only element.
func list[T any](w *words, key string, not bool, elements []T, text func(T) string, set string) {
	switch {
	case set != "":
		w.add(key, negated(not)+"@"+set)
	case len(elements) == 1:
		w.add(key, negated(not)+text(elements[0]))
	}
}

// iface escapes an asterisk at the end, which nft takes for a wildcard, as iptables does a plus.
func (w *words) iface(key string, m ruleset.InterfaceMatch) {
	if m.IsZero() {
		return
	}
	name, wildcard := m.Wildcard()
	switch {
	case wildcard:
		name += "*"
	case strings.HasSuffix(name, "*"):
		name = name[:len(name)-1] + `\*`
	}
	w.add(key, negated(m.Not)+`"`+name+`"`)
}

func (w *words) addrType(key string, t ruleset.AddrType) {
	if t != 0 {
		w.add(key, negated(t == ruleset.AddrTypeNotLocal)+"local")
	}
}

func (w *words) mark(key string, m ruleset.MarkMatch) {
	if m.IsZero() {
		return
	}
	value := hex(m.Value)
	if m.Mask == ruleset.FullMask {
		w.add(key, negated(m.Not)+value)
		return
	}
	op := "=="
	if m.Not {
		op = "!="
	}
	w.add(key, "and", hex(m.Mask), op, value)
}

func hex(v uint32) string { return "0x" + strconv.FormatUint(uint64(v), 16) }

func (w *words) target(r *Rule, ip string) {
	t := r.Target
	switch t.Action {
	case ruleset.ActionNone, ruleset.ActionAccept, ruleset.ActionDrop, ruleset.ActionReturn:
		w.add(verdicts[t.Action])
	case ruleset.ActionJump:
		w.add("jump", t.Chain)
	case ruleset.ActionRedirect:
		w.add("redirect to", ":"+strconv.Itoa(int(t.Port)))
	case ruleset.ActionDNAT:
		to := t.To.String()
		if t.To.Port() == 0 {
			to = t.To.Addr().String()
		}
		w.add("dnat", ip, "to", to)
	case ruleset.ActionTProxy:
		w.add("tproxy")
		if r.Family != 0 {
			w.add(ip)
		}
		w.add("to", ":"+strconv.Itoa(int(t.Port)), "meta mark set", hex(t.Mark), "accept")
	case ruleset.ActionSetMark:
		w.add("meta mark set", hex(t.Mark))
	case ruleset.ActionSaveMark:
		w.add("ct mark set meta mark")
	case ruleset.ActionRestoreMark:
		w.add("meta mark set ct mark")
	case ruleset.ActionZone:
		w.add("ct zone set", strconv.Itoa(int(t.Zone)))
	case ruleset.ActionNoTrack:
		w.add("notrack")
	case ruleset.ActionSetConnMark:
		if t.Mask == ruleset.FullMask {
			w.add("ct mark set", hex(t.Mark))
			return
		}
		w.add("ct mark set ct mark and", hex(^t.Mask), "xor", hex(t.Mark))
	case ruleset.ActionLog:
		w.add("log")
		if t.Prefix != "" {
			w.add("prefix", `"`+t.Prefix+`"`)
		}
		w.add("level", Levels[t.Level&7])
	}
}

var verdicts = map[ruleset.Action]string{
	ruleset.ActionNone: "continue", ruleset.ActionAccept: "accept", ruleset.ActionDrop: "drop", ruleset.ActionReturn: "return",
}

// Levels are nft's names of syslog's levels.
var Levels = [...]string{"emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"}
