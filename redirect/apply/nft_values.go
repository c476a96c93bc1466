//go:build linux

package apply

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
)

// payloadName names a field, or several bytes of an address from its first one on: nft compares prefixes of whole bytes so, and two
// fields that follow one another. Others have no name, also if they begin where a field does.
func payloadName(base, offset, length uint32) string {
	type field struct{ base, offset uint32 }
	name := map[field]string{
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 12}:  "ip saddr",
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 16}:  "ip daddr",
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 8}:   "ip6 saddr",
		{unix.NFT_PAYLOAD_NETWORK_HEADER, 24}:  "ip6 daddr",
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0}: "th sport",
		{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2}: "th dport",
	}[field{base, offset}]
	size, part := uint32(2), false
	switch {
	case strings.HasPrefix(name, "ip "):
		size, part = 4, true
	case strings.HasPrefix(name, "ip6 "):
		size, part = 16, true
	}
	if name == "" || length != size && !(part && length < size) && !(pairs[name] != "" && length == 2*size) {
		return fmt.Sprintf("payload %d,%d,%d", base, offset, length)
	}
	return name
}

func (d *describer) show(v []byte) string {
	if d.swapped && byteOrders[d.key] != nil && len(v) == 4 {
		return fmt.Sprint(binary.BigEndian.Uint32(v))
	}
	return d.as(d.key, v)
}

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

// as shows a value of the key, or in hexadecimal what it does not know. An interface's name is without its quotes.
func (d *describer) as(key string, v []byte) string {
	if name, ok := valueNames[key][string(v)]; ok {
		return name
	}
	order := byteOrders[key]
	switch {
	case key == "iifname" || key == "oifname":
		name, ends := strings.CutSuffix(strings.TrimRight(string(v), "\x00"), "*")
		switch {
		case ends:
			name += `\*` // one of the name itself
		case !bytes.ContainsRune(v, 0):
			name += "*" // whatever begins so: a whole name is compared with its end
		}
		return name
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
