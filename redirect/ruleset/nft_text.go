package ruleset

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// NFT returns the ruleset as text for nft -f: one transaction that puts the
// program into a namespace, in place of an earlier one of the same owner. It is
// empty when no family has a program. Policy routing is given as comments, in
// iproute2's words, since nftables has none.
func (rs Ruleset) NFT() string {
	if rs.IPv4 == nil && rs.IPv6 == nil {
		return ""
	}
	t := rs.NFTables()
	var b strings.Builder
	// Declaring the table first makes its deletion work where there is none.
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
	for _, f := range Families {
		if p := rs.Program(f); p != nil {
			for _, l := range p.Fixtures() {
				b.WriteString("# " + l + "\n")
			}
		}
	}
	return b.String()
}

// nftElementsPerLine keeps lists short enough to read in a review.
const nftElementsPerLine = 8

func (s *NFTSet) write(b *strings.Builder) {
	typ := "inet_service"
	var elements []string
	for _, r := range s.Ports {
		elements = append(elements, r.nft())
	}
	for _, p := range s.Prefixes {
		if typ = "ipv4_addr"; p.Addr().Is6() {
			typ = "ipv6_addr"
		}
		elements = append(elements, nftPrefix(p))
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

func (r PortRange) nft() string {
	s := strconv.Itoa(int(r.First))
	if r.Last != r.First {
		s += "-" + strconv.Itoa(int(r.Last))
	}
	return s
}

// nftPrefix leaves out the length of a single address, as nft does.
func nftPrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func (c *NFTChain) write(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Hook != "" {
		fmt.Fprintf(b, "\t\ttype %s hook %s priority %s; policy accept;\n", c.Type, c.Hook, nftPriority(c.Priority, c.Hook))
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		b.WriteString("\t\t" + r.Text())
		if r.Comment != "" {
			b.WriteString(` comment "` + r.NFTComment() + `"`)
		}
		b.WriteByte('\n')
	}
	b.WriteString("\t}\n")
}

// nftPriority uses the names that nft knows since 0.9.1, which is also the
// first to know NAT in inet tables.
func nftPriority(p int32, hook string) string {
	switch {
	case p == -300:
		return "raw"
	case p == -150:
		return "mangle"
	case p == -100 && hook == "prerouting":
		return "dstnat"
	case p == 100 && hook == "postrouting":
		return "srcnat"
	case p == 0:
		return "filter"
	}
	return strconv.Itoa(int(p))
}

// nftCommentMax is the longest comment of a rule that nft takes, in bytes.
// Source: NFTNL_UDATA_COMMENT_MAXLEN in libnftnl/udata.h, with its final zero.
const nftCommentMax = 127

// NFTComment is the rule's comment as nft can take it: a single line, no
// quotes, at most 127 bytes.
func (r *NFTRule) NFTComment() string {
	s := nftString(r.Comment)
	for len(s) > nftCommentMax {
		cut := nftCommentMax
		for cut > 0 && s[cut]&0xc0 == 0x80 {
			cut--
		}
		s = s[:cut]
	}
	return s
}

// nftString is what can stand between quotes, in which nft has no escapes.
func nftString(s string) string {
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
func (r *NFTRule) Text() string {
	var w nftWords
	ip := "ip"
	if r.Family == IPv6 {
		ip = "ip6"
	}
	if r.Family != 0 && len(r.Srcs)+len(r.Dsts) == 0 {
		w.add("meta nfproto", r.Family.String())
	}
	w.prefixes(ip+" saddr", r.Src.Not, r.Srcs, r.SrcSet)
	w.prefixes(ip+" daddr", r.Dst.Not, r.Dsts, r.DstSet)
	w.iface("iifname", r.In)
	w.iface("oifname", r.Out)
	switch {
	case r.Proto == AnyProto:
	case len(r.SrcRanges)+len(r.DstRanges) == 0:
		w.add("meta l4proto", nftProto(r.Proto))
	default:
		w.ports(r.Proto.String()+" sport", r.SrcPorts.Not, r.SrcRanges, r.SrcPortSet)
		w.ports(r.Proto.String()+" dport", r.DstPorts.Not, r.DstRanges, r.DstPortSet)
	}
	if r.States != 0 {
		w.add("ct state", strings.ToLower(string(appendStates(nil, r.States))))
	}
	w.mark("meta mark", r.Mark)
	w.mark("ct mark", r.ConnMark)
	for _, o := range r.Owner {
		key := "meta skuid"
		if o.Kind == GID {
			key = "meta skgid"
		}
		ids := decimal(o.First)
		if o.Last != o.First {
			ids += "-" + decimal(o.Last)
		}
		w.add(key, nftNot(o.Not)+ids)
	}
	w.target(r, ip)
	return strings.Join(w, " ")
}

type nftWords []string

func (w *nftWords) add(words ...string) { *w = append(*w, words...) }

func nftNot(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

// nftProto is a number where nft may not know the protocol's name.
func nftProto(p Proto) string {
	if p == TCP || p == UDP {
		return p.String()
	}
	return strconv.Itoa(int(p))
}

func (w *nftWords) prefixes(key string, not bool, prefixes []netip.Prefix, set string) {
	switch {
	case set != "":
		w.add(key, nftNot(not)+"@"+set)
	case len(prefixes) == 1:
		w.add(key, nftNot(not)+nftPrefix(prefixes[0]))
	}
}

func (w *nftWords) ports(key string, not bool, ranges []PortRange, set string) {
	switch {
	case set != "":
		w.add(key, nftNot(not)+"@"+set)
	case len(ranges) == 1:
		w.add(key, nftNot(not)+ranges[0].nft())
	}
}

// iface escapes an asterisk at the end, which would match any ending.
func (w *nftWords) iface(key string, m InterfaceMatch) {
	if m.IsZero() {
		return
	}
	name := m.Name
	if strings.HasSuffix(name, "*") {
		name = name[:len(name)-1] + `\*`
	}
	w.add(key, nftNot(m.Not)+`"`+name+`"`)
}

func (w *nftWords) mark(key string, m MarkMatch) {
	if m.IsZero() {
		return
	}
	value := string(appendHex(nil, m.Value))
	if m.Mask == FullMask {
		w.add(key, nftNot(m.Not)+value)
		return
	}
	op := "=="
	if m.Not {
		op = "!="
	}
	w.add(key, "and", string(appendHex(nil, m.Mask)), op, value)
}

func (w *nftWords) target(r *NFTRule, ip string) {
	t := r.Target
	switch t.Action {
	case NoAction:
		w.add("continue")
	case Accept:
		w.add("accept")
	case Drop:
		w.add("drop")
	case Return:
		w.add("return")
	case Jump:
		w.add("jump", t.Chain)
	case Redirect:
		w.add("redirect to", ":"+strconv.Itoa(int(t.Port)))
	case DNAT:
		to := t.To.String()
		if t.To.Port() == 0 {
			to = t.To.Addr().String()
		}
		w.add("dnat", ip, "to", to)
	case TProxy:
		w.add("tproxy")
		if r.Family != 0 {
			w.add(ip)
		}
		w.add("to", ":"+strconv.Itoa(int(t.Port)), "meta mark set", string(appendHex(nil, t.Mark)), "accept")
	case SetMark:
		w.add("meta mark set", string(appendHex(nil, t.Mark)))
	case SaveMark:
		w.add("ct mark set meta mark")
	case RestoreMark:
		w.add("meta mark set ct mark")
	case Zone:
		w.add("ct zone set", strconv.Itoa(int(t.Zone)))
	case SetConnMark:
		if t.Mask == FullMask {
			w.add("ct mark set", string(appendHex(nil, t.Mark)))
			return
		}
		w.add("ct mark set ct mark and", string(appendHex(nil, ^t.Mask)), "xor", string(appendHex(nil, t.Mark)))
	case Log:
		w.add("log")
		if t.Prefix != "" {
			w.add("prefix", `"`+t.Prefix+`"`)
		}
		w.add("level", nftLevels[t.Level&7])
	}
}

// nftLevels are nft's names of syslog's levels.
var nftLevels = [...]string{"emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"}
