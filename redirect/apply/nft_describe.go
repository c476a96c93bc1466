//go:build linux

package apply

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
)

// describe returns a live rule in words close to nft's. Expressions that we do not write are only named.
func describe(r *liveRule) string {
	var d describer
	parseExprs(r.exprs, d.expr)
	if r.comment != "" {
		d.words = append(d.words, fmt.Sprintf("comment %q", r.comment))
	}
	return strings.Join(d.words, " ")
}

// describer tracks what register 1 holds, which says how to show a value.
type describer struct {
	words []string
	key   string
	value []byte
}

func (d *describer) add(format string, args ...any) {
	d.words = append(d.words, fmt.Sprintf(format, args...))
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
		d.loadOrSet(metaNames[get(unix.NFTA_META_KEY).U32()], name, get(unix.NFTA_META_SREG).U32() != 0)
	case "ct":
		d.loadOrSet(ctNames[get(unix.NFTA_CT_KEY).U32()], name, get(unix.NFTA_CT_SREG).U32() != 0)
	case "payload":
		d.key = payloadName(get(unix.NFTA_PAYLOAD_BASE).U32(), get(unix.NFTA_PAYLOAD_OFFSET).U32(), get(unix.NFTA_PAYLOAD_LEN).U32())
	case "fib":
		d.key = "fib " + map[uint32]string{fibSrc: "saddr", fibDst: "daddr"}[get(nftaFibFlags).U32()]
		if get(nftaFibResult).U32() == fibAddrType {
			d.key += " type"
		}
	case "bitwise":
		d.key += " and " + fmt.Sprintf("0x%x", value(unix.NFTA_BITWISE_MASK))
	case "cmp":
		d.add("%s %s%s", d.key, compareOps[get(unix.NFTA_CMP_OP).U32()], d.show(value(unix.NFTA_CMP_DATA)))
	case "range":
		d.add("%s %s%s-%s", d.key, compareOps[get(unix.NFTA_RANGE_OP).U32()],
			d.show(value(unix.NFTA_RANGE_FROM_DATA)), d.show(value(unix.NFTA_RANGE_TO_DATA)))
	case "lookup":
		not := ""
		if get(unix.NFTA_LOOKUP_FLAGS).U32()&unix.NFT_LOOKUP_F_INV != 0 {
			not = "!= "
		}
		d.add("%s %s@%s", d.key, not, get(unix.NFTA_LOOKUP_SET).Text())
	case "immediate":
		if get(unix.NFTA_IMMEDIATE_DREG).U32() == unix.NFT_REG_VERDICT {
			d.verdict(get(unix.NFTA_IMMEDIATE_DATA))
		} else {
			d.key, d.value = "", value(unix.NFTA_IMMEDIATE_DATA)
		}
	case "redir", "tproxy":
		d.add("%s to :%s", map[string]string{"redir": "redirect", "tproxy": "tproxy"}[name], d.port())
	case "byteorder":
		d.key += " (big endian)"
	default:
		d.add("%s", name)
	}
}

// loadOrSet: a set key takes what register 1 holds, a loaded one replaces it.
func (d *describer) loadOrSet(key, name string, set bool) {
	if key == "" {
		key = name
	}
	switch {
	case !set:
		d.key, d.value = key, nil
	case d.key != "":
		d.add("%s set %s", key, d.key)
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
	if chain := verdict.Attr(unix.NFTA_VERDICT_CHAIN).Text(); chain != "" {
		name += " " + chain
	}
	d.add("%s", name)
}

func payloadName(base, offset, length uint32) string {
	type field struct{ base, offset uint32 }
	name, ok := map[field]string{
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 12}:  "ip saddr",
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 16}:  "ip daddr",
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 8}:   "ip6 saddr",
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 24}:  "ip6 daddr",
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0}: "th sport",
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2}: "th dport",
	}[field{base, offset}]
	if !ok {
		return fmt.Sprintf("payload %d,%d,%d", base, offset, length)
	}
	return name
}

func (d *describer) show(v []byte) string { return d.as(d.key, v) }

var local = map[string]string{string(nfnetlink.NE32(unix.RTN_LOCAL)): "local"}

// valueNames are the names of values, by key.
var valueNames = map[string]map[string]string{
	"meta nfproto": {string([]byte{unix.NFPROTO_IPV4}): "ipv4", string([]byte{unix.NFPROTO_IPV6}): "ipv6"},
	"meta l4proto": {"\x06": "tcp", "\x11": "udp"}, "fib saddr type": local, "fib daddr type": local,
}

// byteOrders are those of keys whose values are numbers.
var byteOrders = map[string]binary.ByteOrder{
	"meta skuid": binary.NativeEndian, "meta skgid": binary.NativeEndian, "meta mark": binary.NativeEndian,
	"ct mark": binary.NativeEndian, "ct zone": binary.NativeEndian, "th sport": binary.BigEndian, "th dport": binary.BigEndian,
}

// as shows a value of the key, or in hexadecimal what it does not know.
func (d *describer) as(key string, v []byte) string {
	if name, ok := valueNames[key][string(v)]; ok {
		return name
	}
	order := byteOrders[key]
	switch {
	case key == "iifname" || key == "oifname":
		return `"` + strings.TrimRight(string(v), "\x00") + `"`
	case key == "ip saddr" || key == "ip daddr":
		return prefixText(v, 4)
	case key == "ip6 saddr" || key == "ip6 daddr":
		return prefixText(v, 16)
	case order != nil && len(v) == 4:
		return fmt.Sprint(order.Uint32(v))
	case order != nil && len(v) == 2:
		return fmt.Sprint(order.Uint16(v))
	}
	return fmt.Sprintf("0x%x", v)
}

// prefixText shows the bytes that are compared as the prefix they are.
func prefixText(v []byte, size int) string {
	if len(v) > size {
		return fmt.Sprintf("0x%x", v)
	}
	full := make([]byte, size)
	copy(full, v)
	a, _ := netip.AddrFromSlice(full)
	if len(v) == size {
		return a.String()
	}
	return netip.PrefixFrom(a, 8*len(v)).String()
}
