//go:build linux

package probes

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Values that x/sys/unix lacks. Source: linux/netfilter.h, linux/netfilter/nf_tables.h.
const (
	nfDrop, nfAccept = 0, 1
	hookPrerouting   = 0
	hookPostrouting  = 4
)

// Priorities. Source: enum nf_ip_hook_priorities in linux/netfilter_ipv4.h, where source NAT is 100, and a packet is in
// raw, -300, before connection tracking, -200. All NAT of a hook runs in the order of its priorities, iptables' of both
// variants included, and the first that names an address for a connection has the say. At 90 ours comes before every
// MASQUERADE at 100, whoever was there first.
const (
	beforeSourceNAT = 90
	raw             = -300
)

// Data types of set keys, for nft to print them by, and types of user data. Source: enum datatypes in nftables'
// include/datatype.h, libnftnl/udata.h.
const (
	udataComment      = 0
	udataKeyByteOrder = 0
	bigEndian         = 2
)

var keyType = map[ruleset.Family]uint32{ruleset.IPv4: 7, ruleset.IPv6: 8}

// header holds the offsets of the addresses in each family's header, and its number. RFC 791, RFC 8200.
var header = map[ruleset.Family]struct {
	src, dst uint32
	proto    byte
}{ruleset.IPv4: {12, 16, unix.NFPROTO_IPV4}, ruleset.IPv6: {8, 24, unix.NFPROTO_IPV6}}

// chain is a base chain of our table, each rule a list of expressions.
type chain struct {
	name, typ string
	hook      uint32
	priority  int32
	rules     [][]byte
}

func (s *Set) chains() []chain {
	post := chain{name: "postrouting", typ: "nat", hook: hookPostrouting, priority: beforeSourceNAT}
	pre := chain{name: "prerouting", typ: "filter", hook: hookPrerouting, priority: raw}
	for _, f := range s.families {
		post.rules = append(post.rules, s.exempt(f))
		pre.rules = append(pre.rules, s.refuse(f))
	}
	return []chain{post, pre}
}

// exprs writes a rule's expressions, which compute in register 1.
type exprs struct{ nfnetlink.Writer }

// numbers is an expression whose attributes are numbers: type, value, type, value.
func (e *exprs) numbers(name string, attrs ...uint32) {
	e.Expr(name, func() {
		for i := 0; i < len(attrs); i += 2 {
			e.U32(uint16(attrs[i]), attrs[i+1]) //nolint:gosec // a type has 16 bits
		}
	})
}

func (e *exprs) meta(key uint32) {
	e.numbers("meta", unix.NFTA_META_KEY, key, unix.NFTA_META_DREG, unix.NFT_REG_1)
}

func (e *exprs) data(typ uint16, data []byte) {
	e.Nest(typ)
	e.Attr(unix.NFTA_DATA_VALUE, data...)
	e.Close()
}

func (e *exprs) cmp(op uint32, data ...byte) {
	e.Expr("cmp", func() {
		e.U32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		e.U32(unix.NFTA_CMP_OP, op)
		e.data(unix.NFTA_CMP_DATA, data)
	})
}

func (e *exprs) address(f ruleset.Family, offset uint32) {
	e.meta(unix.NFT_META_NFPROTO)
	e.cmp(unix.NFT_CMP_EQ, header[f].proto)
	e.numbers("payload", unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1, unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER,
		unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, uint32(f.Bits()/8)) //nolint:gosec // 4 or 16
}

// exempt is the rule that gives the host's connections to pods of the set their source.
//
// The socket's user is what tells them from forwarded packets, which have no socket: the kernel drops a forwarded packet
// that has one (ip_forward), and reads the user of none but a full socket of the namespace that the rule is in
// (nft_meta_get_eval_skugid). So a packet whose user is read at all, whoever it is, is from the host.
func (s *Set) exempt(f ruleset.Family) []byte {
	var e exprs
	e.address(f, header[f].dst)
	e.Expr("lookup", func() {
		e.Text(unix.NFTA_LOOKUP_SET, setName(f))
		e.U32(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
	})
	e.meta(unix.NFT_META_L4PROTO)
	e.cmp(unix.NFT_CMP_EQ, unix.IPPROTO_TCP)
	e.meta(unix.NFT_META_SKUID)
	e.cmp(unix.NFT_CMP_GTE, 0, 0, 0, 0)
	e.Expr("immediate", func() {
		e.U32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_1)
		e.data(unix.NFTA_IMMEDIATE_DATA, s.o.source(f).AsSlice())
	})
	e.numbers("nat", unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT, unix.NFTA_NAT_FAMILY, uint32(header[f].proto), unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1)
	return e.B
}

// refuse is the rule that drops what comes to the host with our source, which the host alone gives, on its way out.
func (s *Set) refuse(f ruleset.Family) []byte {
	var e exprs
	e.address(f, header[f].src)
	e.cmp(unix.NFT_CMP_EQ, s.o.source(f).AsSlice()...)
	e.numbers("counter")
	e.Expr("immediate", func() {
		e.U32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.Nest(unix.NFTA_IMMEDIATE_DATA)
		e.Nest(unix.NFTA_DATA_VERDICT)
		e.U32(unix.NFTA_VERDICT_CODE, nfDrop)
		e.Close()
		e.Close()
	})
	return e.B
}

// sameRule reports whether the kernel's list of expressions is ours.
func sameRule(live, want []byte) bool {
	found, wanted := slices.Collect(nfnetlink.Attrs(live)), slices.Collect(nfnetlink.Attrs(want))
	return slices.EqualFunc(found, wanted, func(l, w nfnetlink.Attr) bool { return covers(l.Data, w.Data) })
}

// covers reports whether the kernel's attributes have all that we wrote: it adds some, and newer kernels more.
func covers(live, want []byte) bool {
	for w := range nfnetlink.Attrs(want) {
		found := false
		for l := range nfnetlink.Attrs(live) {
			found = found || l.Typ == w.Typ && (w.Nested && covers(l.Data, w.Data) || !w.Nested && bytes.Equal(l.Data, w.Data))
		}
		if !found {
			return false
		}
	}
	return true
}

// rebuild writes the table with its entries. What was there goes in the same transaction.
func (s *Set) rebuild(w *nfnetlink.Writer, there bool, want Entries) {
	if there {
		table(w, unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, s.o.Table)
	}
	w.Begin(nfnetlink.TypeOf(unix.NFT_MSG_NEWTABLE), unix.NLM_F_REQUEST|unix.NLM_F_CREATE, unix.NFPROTO_INET, 0)
	w.Text(unix.NFTA_TABLE_NAME, s.o.Table)
	w.End()
	for i, f := range s.families {
		w.Begin(nfnetlink.TypeOf(unix.NFT_MSG_NEWSET), unix.NLM_F_REQUEST|unix.NLM_F_CREATE, unix.NFPROTO_INET, 0)
		w.Text(unix.NFTA_SET_TABLE, s.o.Table)
		w.Text(unix.NFTA_SET_NAME, setName(f))
		w.U32(unix.NFTA_SET_FLAGS, 0)
		w.U32(unix.NFTA_SET_KEY_TYPE, keyType[f])
		w.U32(unix.NFTA_SET_KEY_LEN, uint32(f.Bits()/8)) //nolint:gosec // 4 or 16
		w.U32(unix.NFTA_SET_ID, uint32(i+1))             //nolint:gosec // two at most
		w.Attr(unix.NFTA_SET_USERDATA, append([]byte{udataKeyByteOrder, 4}, nfnetlink.NE32(bigEndian)...)...)
		w.End()
	}
	s.elements(w, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, want)
	for _, c := range s.chains() {
		w.Begin(nfnetlink.TypeOf(unix.NFT_MSG_NEWCHAIN), unix.NLM_F_REQUEST|unix.NLM_F_CREATE, unix.NFPROTO_INET, 0)
		w.Text(unix.NFTA_CHAIN_TABLE, s.o.Table)
		w.Text(unix.NFTA_CHAIN_NAME, c.name)
		w.Nest(unix.NFTA_CHAIN_HOOK)
		w.U32(unix.NFTA_HOOK_HOOKNUM, c.hook)
		w.U32(unix.NFTA_HOOK_PRIORITY, uint32(c.priority)) //nolint:gosec // two's complement
		w.Close()
		w.U32(unix.NFTA_CHAIN_POLICY, nfAccept)
		w.Text(unix.NFTA_CHAIN_TYPE, c.typ)
		w.End()
		for _, rule := range c.rules {
			w.Begin(nfnetlink.TypeOf(unix.NFT_MSG_NEWRULE), unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFPROTO_INET, 0)
			w.Text(unix.NFTA_RULE_TABLE, s.o.Table)
			w.Text(unix.NFTA_RULE_CHAIN, c.name)
			w.Attr(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, rule...)
			w.End()
		}
	}
}

func table(w *nfnetlink.Writer, msg uint16, family byte, name string) {
	w.Begin(nfnetlink.TypeOf(msg), unix.NLM_F_REQUEST, family, 0)
	w.Text(unix.NFTA_TABLE_NAME, name)
	w.End()
}

// perMessage keeps a list of elements below the 64 KiB of an attribute: one takes at most 120 bytes.
const perMessage = 400

// elements adds or deletes entries.
func (s *Set) elements(w *nfnetlink.Writer, msg, flags uint16, entries Entries) {
	for _, f := range s.families {
		addrs := slices.DeleteFunc(slices.SortedFunc(maps.Keys(entries), netip.Addr.Compare), func(a netip.Addr) bool { return ruleset.FamilyOf(a) != f })
		for chunk := range slices.Chunk(addrs, perMessage) {
			w.Begin(nfnetlink.TypeOf(msg), unix.NLM_F_REQUEST|flags, unix.NFPROTO_INET, 0)
			w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.o.Table)
			w.Text(unix.NFTA_SET_ELEM_LIST_SET, setName(f))
			w.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for _, a := range chunk {
				w.Nest(unix.NFTA_LIST_ELEM)
				w.Nest(unix.NFTA_SET_ELEM_KEY)
				w.Attr(unix.NFTA_DATA_VALUE, a.AsSlice()...)
				w.Close()
				if msg == unix.NFT_MSG_NEWSETELEM {
					uid := entries[a]
					data := append([]byte{udataComment, byte(len(uid) + 1)}, uid...) //nolint:gosec // a UID is short
					w.Attr(unix.NFTA_SET_ELEM_USERDATA, append(data, 0)...)
				}
				w.Close()
			}
			w.Close()
			w.End()
		}
	}
}

// comment reads the comment in an element's user data, as nft writes it.
func comment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == udataComment {
			return string(bytes.TrimRight(value, "\x00"))
		}
		data = data[2+len(value):]
	}
	return ""
}
