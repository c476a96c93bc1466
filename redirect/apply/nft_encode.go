//go:build linux

package apply

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Values that x/sys/unix lacks. Source: linux/netfilter/nf_tables.h and, for
// the flags of NAT, linux/netfilter/nf_nat.h.
const (
	nftaTProxyFamily = 1 // NFTA_TPROXY_FAMILY
	nftaTProxyAddr   = 2 // NFTA_TPROXY_REG_ADDR
	nftaTProxyPort   = 3 // NFTA_TPROXY_REG_PORT
	natMapIPs        = 1 // NF_NAT_RANGE_MAP_IPS
	natPorts         = 2 // NF_NAT_RANGE_PROTO_SPECIFIED
	nftaFibDreg      = 1 // NFTA_FIB_DREG
	nftaFibResult    = 2 // NFTA_FIB_RESULT
	nftaFibFlags     = 3 // NFTA_FIB_FLAGS
	fibAddrType      = 3 // NFT_FIB_RESULT_ADDRTYPE
	fibSrc           = 1 // NFTA_FIB_F_SADDR
	fibDst           = 2 // NFTA_FIB_F_DADDR
	nftReg32First    = 8 // NFT_REG32_00, the same register as NFT_REG_1
)

// Data types of set keys, for nft to print them by. Source: enum datatypes in nftables' include/datatype.h.
const (
	typeIPAddr      = 7
	typeIP6Addr     = 8
	typeInetService = 13
)

// Types of user data that nft itself writes, each with a length byte. Source:
// enum nftnl_udata_rule_types and nftnl_udata_set_types in libnftnl/udata.h.
const (
	udataRuleComment     = 0
	udataSetKeyByteOrder = 0
	byteOrderBigEndian   = 2
)

// What each family's header has where; the first byte counts from the start of the header. RFC 791, RFC 8200.
var addressOffset = map[ruleset.Family]struct{ src, dst uint32 }{ruleset.IPv4: {12, 16}, ruleset.IPv6: {8, 24}}

func nfProto(f ruleset.Family) byte {
	if f == ruleset.IPv4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// writeExprs writes a rule's expressions, the same as nft makes of the rule's text.
func writeExprs(w *nfnetlink.Writer, r *nft.Rule) {
	e := exprs{w}
	if r.Family != 0 {
		e.meta(unix.NFT_META_NFPROTO)
		e.cmp(unix.NFT_CMP_EQ, nfProto(r.Family))
		e.addresses(r)
	}
	e.iface(unix.NFT_META_IIFNAME, r.In)
	e.iface(unix.NFT_META_OIFNAME, r.Out)
	if r.Proto != ruleset.AnyProto {
		e.meta(unix.NFT_META_L4PROTO)
		e.cmp(unix.NFT_CMP_EQ, byte(r.Proto))
		e.ports(r)
	}
	e.addrType(fibSrc, r.SrcType)
	e.addrType(fibDst, r.DstType)
	if r.States != 0 {
		e.ct(unix.NFT_CT_STATE)
		e.mask(nfnetlink.NE32(stateBits(r.States)))
		e.cmp(unix.NFT_CMP_NEQ, nfnetlink.NE32(0)...)
	}
	if !r.Mark.IsZero() {
		e.meta(unix.NFT_META_MARK)
		e.mark(r.Mark)
	}
	if !r.ConnMark.IsZero() {
		e.ct(unix.NFT_CT_MARK)
		e.mark(r.ConnMark)
	}
	for _, o := range r.Owner {
		e.owner(o)
	}
	e.target(r)
}

// exprs writes expressions. All that compute do so in register 1.
type exprs struct{ w *nfnetlink.Writer }

func (e exprs) expr(name string, body func()) {
	e.w.Expr(name, body)
}

// numbers is an expression whose attributes are numbers: type, value, type, value.
func (e exprs) numbers(name string, attrs ...uint32) {
	e.expr(name, func() {
		for i := 0; i < len(attrs); i += 2 {
			e.w.U32(uint16(attrs[i]), attrs[i+1]) //nolint:gosec // a type has 16 bits
		}
	})
}

// meta and ct load what the key names into register 1.
func (e exprs) meta(key uint32) {
	e.numbers("meta", unix.NFTA_META_KEY, key, unix.NFTA_META_DREG, unix.NFT_REG_1)
}

func (e exprs) ct(key uint32) {
	e.numbers("ct", unix.NFTA_CT_KEY, key, unix.NFTA_CT_DREG, unix.NFT_REG_1)
}

// setMeta and setCT set what the key names from register 1.
func (e exprs) setMeta(key uint32) {
	e.numbers("meta", unix.NFTA_META_KEY, key, unix.NFTA_META_SREG, unix.NFT_REG_1)
}

func (e exprs) setCT(key uint32) {
	e.numbers("ct", unix.NFTA_CT_KEY, key, unix.NFTA_CT_SREG, unix.NFT_REG_1)
}

func (e exprs) data(typ uint16, data []byte) {
	e.w.Nest(typ)
	e.w.Attr(unix.NFTA_DATA_VALUE, data...)
	e.w.Close()
}

func (e exprs) cmp(op uint32, data ...byte) {
	e.expr("cmp", func() {
		e.w.U32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		e.w.U32(unix.NFTA_CMP_OP, op)
		e.data(unix.NFTA_CMP_DATA, data)
	})
}

func eqOr(not bool) uint32 {
	if not {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}

// between compares as nft does: two comparisons, or, negated, one with the range.
func (e exprs) between(first, last []byte, not bool) {
	if !not {
		e.cmp(unix.NFT_CMP_GTE, first...)
		e.cmp(unix.NFT_CMP_LTE, last...)
		return
	}
	e.expr("range", func() {
		e.w.U32(unix.NFTA_RANGE_SREG, unix.NFT_REG_1)
		e.w.U32(unix.NFTA_RANGE_OP, unix.NFT_RANGE_NEQ)
		e.data(unix.NFTA_RANGE_FROM_DATA, first)
		e.data(unix.NFTA_RANGE_TO_DATA, last)
	})
}

func (e exprs) mask(mask []byte) { e.bitwise(mask, make([]byte, len(mask))) }

func (e exprs) bitwise(mask, xor []byte) {
	e.expr("bitwise", func() {
		e.w.U32(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1)
		e.w.U32(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1)
		e.w.U32(unix.NFTA_BITWISE_LEN, uint32(len(mask))) //nolint:gosec // 4 or 16
		e.data(unix.NFTA_BITWISE_MASK, mask)
		e.data(unix.NFTA_BITWISE_XOR, xor)
	})
}

func (e exprs) payload(base, offset, length uint32) {
	e.numbers("payload", unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1, unix.NFTA_PAYLOAD_BASE, base,
		unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, length)
}

func (e exprs) lookup(set string, not bool) {
	e.expr("lookup", func() {
		e.w.Text(unix.NFTA_LOOKUP_SET, set)
		e.w.U32(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
		if not {
			e.w.U32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

func (e exprs) addresses(r *nft.Rule) {
	at, size := addressOffset[r.Family], uint32(r.Family.Bits())/8 //nolint:gosec // 32 or 128
	e.prefixes(at.src, size, r.Srcs, r.SrcSet, r.Src.Not)
	e.prefixes(at.dst, size, r.Dsts, r.DstSet, r.Dst.Not)
}

// prefixes loads no more of the address than a prefix of whole bytes has.
func (e exprs) prefixes(offset, size uint32, prefixes []netip.Prefix, set string, not bool) {
	switch {
	case set != "":
		e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size)
		e.lookup(set, not)
	case len(prefixes) == 1 && prefixes[0].Bits()%8 == 0:
		n := prefixes[0].Bits() / 8
		e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(n)) //nolint:gosec // at most 16
		e.cmp(eqOr(not), prefixes[0].Addr().AsSlice()[:n]...)
	case len(prefixes) == 1:
		e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size)
		e.mask(maskOf(prefixes[0]))
		e.cmp(eqOr(not), prefixes[0].Addr().AsSlice()...)
	}
}

func maskOf(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// ports joins two ports into one comparison, as nft does.
func (e exprs) ports(r *nft.Rule) {
	single := func(p []ruleset.PortRange, not bool) bool { return len(p) == 1 && !not && p[0].First == p[0].Last }
	if single(r.SrcRanges, r.SrcPorts.Not) && single(r.DstRanges, r.DstPorts.Not) {
		e.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4)
		e.cmp(unix.NFT_CMP_EQ, append(nfnetlink.BE16(r.SrcRanges[0].First), nfnetlink.BE16(r.DstRanges[0].First)...)...)
		return
	}
	for _, o := range []struct {
		offset uint32
		ranges []ruleset.PortRange
		set    string
		not    bool
	}{{0, r.SrcRanges, r.SrcPortSet, r.SrcPorts.Not}, {2, r.DstRanges, r.DstPortSet, r.DstPorts.Not}} {
		if len(o.ranges) == 0 {
			continue
		}
		e.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, o.offset, 2)
		first, last := o.ranges[0].First, o.ranges[0].Last
		switch {
		case o.set != "":
			e.lookup(o.set, o.not)
		case first == last:
			e.cmp(eqOr(o.not), nfnetlink.BE16(first)...)
		default:
			e.between(nfnetlink.BE16(first), nfnetlink.BE16(last), o.not)
		}
	}
}

// iface compares all 16 bytes, so a name is never taken for a beginning; of a wildcard only the beginning.
func (e exprs) iface(key uint32, m ruleset.InterfaceMatch) {
	if m.IsZero() {
		return
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name[:unix.IFNAMSIZ-1], m.Name)
	if prefix, ok := m.Wildcard(); ok {
		name = []byte(prefix)
	}
	e.meta(key)
	e.cmp(eqOr(m.Not), name...)
}

// addrType asks the routing tables what kind of address the packet has.
func (e exprs) addrType(which uint32, t ruleset.AddrType) {
	if t == 0 {
		return
	}
	e.numbers("fib", nftaFibDreg, unix.NFT_REG_1, nftaFibResult, fibAddrType, nftaFibFlags, which)
	e.cmp(eqOr(t == ruleset.AddrTypeNotLocal), nfnetlink.NE32(unix.RTN_LOCAL)...)
}

// stateBits: NF_CT_STATE_BIT in linux/netfilter/nf_conntrack_common.h.
func stateBits(s ruleset.States) (bits uint32) {
	for state, bit := range map[ruleset.States]uint32{
		ruleset.StateInvalid: 1, ruleset.StateEstablished: 2, ruleset.StateRelated: 4,
		ruleset.StateNew: 8, ruleset.StateUntracked: 64,
	} {
		if s&state != 0 {
			bits |= bit
		}
	}
	return bits
}

func (e exprs) mark(m ruleset.MarkMatch) {
	if m.Mask != ruleset.FullMask {
		e.mask(nfnetlink.NE32(m.Mask))
	}
	e.cmp(eqOr(m.Not), nfnetlink.NE32(m.Value)...)
}

// owner: ids are in the host's byte order, in which a range cannot be compared.
func (e exprs) owner(o ruleset.OwnerMatch) {
	if o.IsZero() {
		return
	}
	key := uint32(unix.NFT_META_SKUID)
	if o.Kind == ruleset.OwnerGID {
		key = unix.NFT_META_SKGID
	}
	e.meta(key)
	if o.First == o.Last {
		e.cmp(eqOr(o.Not), nfnetlink.NE32(o.First)...)
		return
	}
	e.numbers("byteorder", unix.NFTA_BYTEORDER_SREG, unix.NFT_REG_1, unix.NFTA_BYTEORDER_DREG, unix.NFT_REG_1,
		unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON, unix.NFTA_BYTEORDER_LEN, 4, unix.NFTA_BYTEORDER_SIZE, 4)
	e.between(nfnetlink.BE32(o.First), nfnetlink.BE32(o.Last), o.Not)
}

func (e exprs) immediate(reg uint32, data []byte) {
	e.expr("immediate", func() {
		e.w.U32(unix.NFTA_IMMEDIATE_DREG, reg)
		e.data(unix.NFTA_IMMEDIATE_DATA, data)
	})
}

func (e exprs) verdict(code int32, chain string) {
	e.expr("immediate", func() {
		e.w.U32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.w.Nest(unix.NFTA_IMMEDIATE_DATA)
		e.w.Nest(unix.NFTA_DATA_VERDICT)
		e.w.U32(unix.NFTA_VERDICT_CODE, uint32(code)) //nolint:gosec // two's complement
		if chain != "" {
			e.w.Text(unix.NFTA_VERDICT_CHAIN, chain)
		}
		e.w.Close()
		e.w.Close()
	})
}

func (e exprs) setMark(mark uint32) {
	e.immediate(unix.NFT_REG_1, nfnetlink.NE32(mark))
	e.setMeta(unix.NFT_META_MARK)
}

func (e exprs) target(r *nft.Rule) {
	t := r.Target
	switch t.Action {
	case ruleset.ActionNone, ruleset.ActionAccept, ruleset.ActionDrop, ruleset.ActionReturn, ruleset.ActionJump:
		e.verdict(verdicts[t.Action], t.Chain)
	case ruleset.ActionRedirect:
		e.immediate(unix.NFT_REG_1, nfnetlink.BE16(t.Port))
		e.numbers("redir", unix.NFTA_REDIR_REG_PROTO_MIN, unix.NFT_REG_1,
			unix.NFTA_REDIR_REG_PROTO_MAX, unix.NFT_REG_1, unix.NFTA_REDIR_FLAGS, natPorts)
	case ruleset.ActionDNAT:
		e.dnat(r.Family, t.To)
	case ruleset.ActionTProxy:
		e.immediate(unix.NFT_REG_1, nfnetlink.BE16(t.Port))
		family := uint32(unix.NFPROTO_UNSPEC)
		if r.Family != 0 {
			family = uint32(nfProto(r.Family))
		}
		e.numbers("tproxy", nftaTProxyFamily, family, nftaTProxyPort, unix.NFT_REG_1)
		e.setMark(t.Mark)
		e.verdict(nfAccept, "")
	case ruleset.ActionSetMark:
		e.setMark(t.Mark)
	case ruleset.ActionSaveMark:
		e.meta(unix.NFT_META_MARK)
		e.setCT(unix.NFT_CT_MARK)
	case ruleset.ActionRestoreMark:
		e.ct(unix.NFT_CT_MARK)
		e.setMeta(unix.NFT_META_MARK)
	case ruleset.ActionSetConnMark:
		e.setConnMark(t.Mark, t.Mask)
	case ruleset.ActionLog:
		e.expr("log", func() {
			if t.Prefix != "" {
				e.w.Text(unix.NFTA_LOG_PREFIX, t.Prefix)
			}
			e.w.U32(unix.NFTA_LOG_LEVEL, uint32(t.Level))
		})
	case ruleset.ActionZone:
		e.immediate(unix.NFT_REG_1, binary.NativeEndian.AppendUint16(nil, t.Zone))
		e.setCT(unix.NFT_CT_ZONE)
	}
}

// The verdicts of linux/netfilter.h.
const (
	nfDrop   = 0
	nfAccept = 1
)

var verdicts = map[ruleset.Action]int32{
	ruleset.ActionNone: unix.NFT_CONTINUE, ruleset.ActionAccept: nfAccept, ruleset.ActionDrop: nfDrop,
	ruleset.ActionReturn: unix.NFT_RETURN, ruleset.ActionJump: unix.NFT_JUMP,
}

// setConnMark keeps the bits outside the mask, as iptables' --set-xmark does.
func (e exprs) setConnMark(mark, mask uint32) {
	if mask == ruleset.FullMask {
		e.immediate(unix.NFT_REG_1, nfnetlink.NE32(mark))
	} else {
		e.ct(unix.NFT_CT_MARK)
		e.bitwise(nfnetlink.NE32(^mask), nfnetlink.NE32(mark))
	}
	e.setCT(unix.NFT_CT_MARK)
}

func (e exprs) dnat(f ruleset.Family, to netip.AddrPort) {
	e.immediate(unix.NFT_REG_1, to.Addr().AsSlice())
	if to.Port() != 0 {
		e.immediate(unix.NFT_REG_2, nfnetlink.BE16(to.Port()))
	}
	attrs := []uint32{
		unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT, unix.NFTA_NAT_FAMILY, uint32(nfProto(f)),
		unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1, unix.NFTA_NAT_REG_ADDR_MAX, unix.NFT_REG_1,
	}
	flags := uint32(natMapIPs)
	if to.Port() != 0 {
		attrs = append(attrs, unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_2, unix.NFTA_NAT_REG_PROTO_MAX, unix.NFT_REG_2)
		flags |= natPorts
	}
	e.numbers("nat", append(attrs, unix.NFTA_NAT_FLAGS, flags)...)
}
