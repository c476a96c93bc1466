//go:build linux

package apply

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// describe returns a live rule in words close to nft's. Expressions that we do not write are only named.
func describe(r *liveRule) []nft.Word {
	var d describer
	parseExprs(r.exprs, d.expr)
	if r.comment != "" {
		d.words = append(d.words, nft.Name("comment"), nft.Quoted(r.comment))
	}
	return d.words
}

// describer tracks what register 1 holds, which says how to show a value. Another register makes a word that nft has not, so that
// nobody takes the rule for one that is understood.
type describer struct {
	words []nft.Word
	key   string
	value []byte
	// mask and xor are of a bitwise expression.
	mask, xor []byte
	// swapped: a number is in network order.
	swapped bool
	// second is the content of register 2: the port of dnat.
	second []byte
}

// add adds words that no pod has chosen.
func (d *describer) add(format string, args ...any) {
	for word := range strings.FieldsSeq(fmt.Sprintf(format, args...)) {
		d.words = append(d.words, nft.Name(word))
	}
}

// addValue adds what the key is compared with.
func (d *describer) addValue(op string, v []byte) {
	d.add("%s %s", d.masked(), op)
	if strings.HasSuffix(d.key, "ifname") {
		d.words = append(d.words, nft.Quoted(d.show(v)))
		return
	}
	d.add("%s", d.show(v))
}

var metaNames = map[uint32]string{
	unix.NFT_META_NFPROTO: "meta nfproto", unix.NFT_META_L4PROTO: "meta l4proto", unix.NFT_META_MARK: "meta mark",
	unix.NFT_META_IIFNAME: "iifname", unix.NFT_META_OIFNAME: "oifname",
	unix.NFT_META_SKUID: "meta skuid", unix.NFT_META_SKGID: "meta skgid",
}

var ctNames = map[uint32]string{unix.NFT_CT_STATE: "ct state", unix.NFT_CT_MARK: "ct mark", unix.NFT_CT_ZONE: "ct zone"}

var compareOps = map[uint32]string{
	unix.NFT_CMP_EQ: "", unix.NFT_CMP_NEQ: "!= ", unix.NFT_CMP_LT: "< ", unix.NFT_CMP_LTE: "<= ",
	unix.NFT_CMP_GT: "> ", unix.NFT_CMP_GTE: ">= ",
}

func (d *describer) expr(name string, data nfnetlink.Attr) {
	get := data.Attr
	value := func(typ uint16) []byte {
		for v := range nfnetlink.Attrs(get(typ).Data) {
			return v.Data
		}
		return nil
	}
	switch name {
	case "meta":
		d.register(get(unix.NFTA_META_DREG), get(unix.NFTA_META_SREG))
		d.loadOrSet(metaNames[get(unix.NFTA_META_KEY).U32()], name, get(unix.NFTA_META_SREG).U32() != 0)
	case "ct":
		d.register(get(unix.NFTA_CT_DREG), get(unix.NFTA_CT_SREG))
		key := ctNames[get(unix.NFTA_CT_KEY).U32()]
		if get(unix.NFTA_CT_DIRECTION).Data != nil {
			key = "ct of a direction"
		}
		d.loadOrSet(key, name, get(unix.NFTA_CT_SREG).U32() != 0)
	case "payload":
		d.register(get(unix.NFTA_PAYLOAD_DREG))
		if get(unix.NFTA_PAYLOAD_SREG).U32() != 0 {
			d.add("payload set")
		}
		d.load(payloadName(get(unix.NFTA_PAYLOAD_BASE).U32(), get(unix.NFTA_PAYLOAD_OFFSET).U32(), get(unix.NFTA_PAYLOAD_LEN).U32()))
	case "fib":
		d.register(get(nftaFibDreg))
		key := "fib " + map[uint32]string{fibSrc: "saddr", fibDst: "daddr"}[get(nftaFibFlags).U32()]
		if get(nftaFibResult).U32() == fibAddrType {
			key += " type"
		}
		d.load(key)
	case "bitwise":
		d.register(get(unix.NFTA_BITWISE_DREG), get(unix.NFTA_BITWISE_SREG))
		if d.mask != nil || get(unix.NFTA_BITWISE_MASK).Data == nil {
			d.add("bitwise")
		}
		d.mask, d.xor = value(unix.NFTA_BITWISE_MASK), value(unix.NFTA_BITWISE_XOR)
	case "cmp":
		d.register(get(unix.NFTA_CMP_SREG))
		d.compare(get(unix.NFTA_CMP_OP).U32(), value(unix.NFTA_CMP_DATA))
	case "range":
		d.register(get(unix.NFTA_RANGE_SREG))
		if strings.HasSuffix(d.key, "ifname") {
			d.add("range")
			return
		}
		d.add("%s %s%s-%s", d.masked(), compareOps[get(unix.NFTA_RANGE_OP).U32()],
			d.show(value(unix.NFTA_RANGE_FROM_DATA)), d.show(value(unix.NFTA_RANGE_TO_DATA)))
	case "lookup":
		d.register(get(unix.NFTA_LOOKUP_SREG))
		not := ""
		if get(unix.NFTA_LOOKUP_FLAGS).U32()&unix.NFT_LOOKUP_F_INV != 0 {
			not = "!= "
		}
		if get(unix.NFTA_LOOKUP_DREG).Data != nil {
			not = "map "
		}
		d.add("%s %s", d.masked(), not)
		d.words = append(d.words, nft.Name("@"+get(unix.NFTA_LOOKUP_SET).Text()))
	case "immediate":
		switch get(unix.NFTA_IMMEDIATE_DREG).U32() {
		case unix.NFT_REG_VERDICT:
			d.verdict(get(unix.NFTA_IMMEDIATE_DATA))
		case unix.NFT_REG_2:
			d.second = value(unix.NFTA_IMMEDIATE_DATA)
		default:
			d.register(get(unix.NFTA_IMMEDIATE_DREG))
			d.load("")
			d.value = value(unix.NFTA_IMMEDIATE_DATA)
		}
	case "redir":
		d.register(get(unix.NFTA_REDIR_REG_PROTO_MIN), get(unix.NFTA_REDIR_REG_PROTO_MAX))
		d.add("redirect to :%s", d.port())
	case "tproxy":
		d.register(get(nftaTProxyPort))
		to := map[uint32]string{unix.NFPROTO_IPV4: "ip to", unix.NFPROTO_IPV6: "ip6 to"}[get(nftaTProxyFamily).U32()]
		if get(nftaTProxyAddr).Data != nil {
			to = "to an address and"
		}
		d.add("tproxy %s :%s", cmp.Or(to, "to"), d.port())
	case "byteorder":
		// A number is made comparable, and its value is in network order too.
		d.register(get(unix.NFTA_BYTEORDER_DREG), get(unix.NFTA_BYTEORDER_SREG))
		d.swapped = true
	case "log":
		d.log(get)
	case "nat":
		d.nat(get)
	default:
		d.add("%s", name)
	}
}

func (d *describer) log(get func(uint16) nfnetlink.Attr) {
	d.add("log")
	if g := get(unix.NFTA_LOG_GROUP); len(g.Data) == 2 {
		d.add("group %d", binary.BigEndian.Uint16(g.Data))
	}
	if p := get(unix.NFTA_LOG_PREFIX); p.Data != nil {
		d.words = append(d.words, nft.Name("prefix"), nft.Quoted(p.Text()))
	}
	if l := get(unix.NFTA_LOG_LEVEL); l.Data != nil && int(l.U32()) < len(nft.Levels) {
		d.add("level %s", nft.Levels[l.U32()])
	}
	if get(unix.NFTA_LOG_FLAGS).U32() != 0 {
		d.add("flags")
	}
}

// nat shows a destination that is rewritten to one address, and to one port or its own.
func (d *describer) nat(get func(uint16) nfnetlink.Attr) {
	a, ok := netip.AddrFromSlice(d.value)
	ports := get(unix.NFTA_NAT_REG_PROTO_MIN)
	if get(unix.NFTA_NAT_TYPE).U32() != unix.NFT_NAT_DNAT || !ok || get(unix.NFTA_NAT_FLAGS).U32()&^(natMapIPs|natPorts) != 0 ||
		get(unix.NFTA_NAT_REG_ADDR_MIN).U32() != unix.NFT_REG_1 || !same(get(unix.NFTA_NAT_REG_ADDR_MIN), get(unix.NFTA_NAT_REG_ADDR_MAX)) ||
		!same(ports, get(unix.NFTA_NAT_REG_PROTO_MAX)) || ports.Data != nil && (ports.U32() != unix.NFT_REG_2 || len(d.second) != 2) {
		d.add("nat")
		return
	}
	to, ip := a.String(), "ip"
	if a.Is6() {
		ip = "ip6"
	}
	if ports.Data != nil {
		to = netip.AddrPortFrom(a, binary.BigEndian.Uint16(d.second)).String()
	}
	d.add("dnat %s to %s", ip, to)
}

// same reports whether the end of a range is its beginning, or absent.
func same(first, last nfnetlink.Attr) bool { return last.Data == nil || last.U32() == first.U32() }

// register notes a register that is not the first.
func (d *describer) register(attrs ...nfnetlink.Attr) {
	for _, a := range attrs {
		if r := a.U32(); a.Data != nil && r != 0 && r != unix.NFT_REG_1 && r != nftReg32First {
			d.add("register-%d", r)
		}
	}
}

// load notes what register 1 holds now.
func (d *describer) load(key string) {
	d.key, d.value, d.mask, d.xor, d.swapped = key, nil, nil, nil, false
}

// masked is the key with what a bitwise expression makes of it.
func (d *describer) masked() string {
	s := d.key
	if d.mask != nil {
		s += " and " + d.number(d.mask)
	}
	if bytes.ContainsFunc(d.xor, func(c rune) bool { return c != 0 }) {
		s += " xor " + d.number(d.xor)
	}
	return s
}

// number shows bits.
func (d *describer) number(v []byte) string {
	if order := byteOrders[d.key]; order != nil && len(v) == 4 {
		return fmt.Sprintf("0x%x", order.Uint32(v))
	}
	return fmt.Sprintf("0x%x", v)
}

func (d *describer) compare(op uint32, v []byte) {
	plain := !bytes.ContainsFunc(d.xor, func(c rune) bool { return c != 0 })
	switch {
	case d.mask == nil && op == unix.NFT_CMP_EQ && len(v) > sizes[d.key] && pairs[d.key] != "":
		// Two fields that follow one another, which nft compares at once.
		d.add("%s %s %s %s", d.key, d.show(v[:sizes[d.key]]), pairs[d.key], d.as(pairs[d.key], v[sizes[d.key]:]))
		return
	case d.mask == nil:
		d.addValue(compareOps[op], v)
		return
	case d.key == "ct state" && op == unix.NFT_CMP_NEQ && plain && !bytes.ContainsFunc(v, func(c rune) bool { return c != 0 }):
		if states := stateText(d.mask); states != "" {
			d.add("ct state %s", states)
			return
		}
	case plain && strings.HasSuffix(d.key, "addr"):
		if p, ok := prefixOf(v, or(v, d.mask)); ok {
			d.add("%s %s%s", d.key, compareOps[op], p)
			return
		}
	case op == unix.NFT_CMP_EQ:
		d.addValue("==", v)
		return
	}
	d.addValue(compareOps[op], v)
}

// or is the last address that a mask leaves.
func or(v, mask []byte) []byte {
	out := bytes.Clone(v)
	for i := range min(len(out), len(mask)) {
		out[i] |= ^mask[i]
	}
	return out
}

// stateText names the states of a mask, or returns nothing for others.
func stateText(mask []byte) string {
	if len(mask) != 4 {
		return ""
	}
	left := binary.NativeEndian.Uint32(mask)
	var names []string
	for _, s := range []ruleset.States{
		ruleset.StateInvalid, ruleset.StateEstablished, ruleset.StateRelated, ruleset.StateNew, ruleset.StateUntracked,
	} {
		if bit := stateBits(s); left&bit != 0 {
			names, left = append(names, strings.ToLower(s.String())), left&^bit
		}
	}
	if left != 0 {
		return ""
	}
	return strings.Join(names, ",")
}

// pairs are the fields that follow others in a header, and sizes the bytes that those have.
var (
	pairs = map[string]string{"ip saddr": "ip daddr", "ip6 saddr": "ip6 daddr", "th sport": "th dport"}
	sizes = map[string]int{"ip saddr": 4, "ip6 saddr": 16, "th sport": 2}
)

// loadOrSet: a set key takes what register 1 holds, a loaded one replaces it.
func (d *describer) loadOrSet(key, name string, set bool) {
	if key == "" {
		key = name
	}
	switch {
	case !set:
		d.load(key)
	case d.key != "":
		d.add("%s set %s", key, d.masked())
	default:
		d.add("%s set %s", key, d.as(key, d.value))
	}
}

func (d *describer) port() string {
	if len(d.value) != 2 {
		return "?"
	}
	return fmt.Sprint(binary.BigEndian.Uint16(d.value))
}

func (d *describer) verdict(data nfnetlink.Attr) {
	verdict := data.Attr(unix.NFTA_DATA_VERDICT)
	code := int32(verdict.Attr(unix.NFTA_VERDICT_CODE).U32()) //nolint:gosec // two's complement
	name, ok := map[int32]string{
		nfAccept: "accept", nfDrop: "drop", unix.NFT_RETURN: "return", unix.NFT_CONTINUE: "continue",
		unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto",
	}[code]
	if !ok {
		name = fmt.Sprintf("verdict %d", code)
	}
	d.add("%s", name)
	if chain := verdict.Attr(unix.NFTA_VERDICT_CHAIN).Text(); chain != "" {
		d.words = append(d.words, nft.Name(chain))
	}
}
