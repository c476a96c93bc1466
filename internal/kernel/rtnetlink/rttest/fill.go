//go:build linux

// Package rttest fills a network namespace with addresses, links, routes and policy rules, as a pod with CAP_NET_ADMIN can.
package rttest

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// Fill says how much to make.
type Fill struct {
	// Routes to single addresses, in Table, by lo. Local: they are of the type by which the mesh's are told.
	Routes int
	Table  uint32
	Local  bool
	// Rules are policy rules for the mark, five of each priority from Last down. Others with a lower priority make this slow, since
	// the kernel looks for the place of each from the front.
	Rules int
	Mark  uint32
	Last  uint32 // 0: 30000
	// Addrs are addresses of lo.
	Addrs int
	// Links are bridges without ports.
	Links int
	// IPv6: all this for IPv6 instead of IPv4.
	IPv6 bool
}

// Make makes it. It requires root.
func (f Fill) Make(tb testing.TB, ns *netnsexec.NetNS) {
	tb.Helper()
	netnstest.Require(tb, netnstest.Root)
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	b := batch{fd: fd, family: unix.AF_INET}
	if f.IPv6 {
		b.family = unix.AF_INET6
	}
	kind, block := byte(unix.RTN_UNICAST), byte(100)
	if f.Local {
		kind, block = unix.RTN_LOCAL, 120
	}
	for i := range f.Routes {
		dst := b.addr(block, i)
		b.begin(unix.RTM_NEWROUTE, []byte{b.family, byte(dst.BitLen()), 0, 0, 0, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, kind, 0, 0, 0, 0})
		b.attr(unix.RTA_TABLE, number(f.Table))
		b.attr(unix.RTA_DST, dst.AsSlice())
		b.attr(unix.RTA_OIF, number(1))
		b.end()
	}
	for i := range f.Rules {
		b.begin(unix.RTM_NEWRULE, []byte{b.family, 0, 0, 0, 0, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0})
		b.attr(unix.FRA_PRIORITY, number(cmp.Or(f.Last, 30000)-uint32(i/5))) //nolint:gosec // positive
		b.attr(unix.FRA_FWMARK, number(f.Mark))
		b.attr(unix.FRA_TABLE, number(1000))
		b.end()
	}
	for i := range f.Addrs {
		a := b.addr(20, i)
		b.begin(unix.RTM_NEWADDR, []byte{b.family, byte(a.BitLen()), unix.IFA_F_NODAD, 0, 1, 0, 0, 0})
		b.attr(unix.IFA_LOCAL, a.AsSlice())
		b.attr(unix.IFA_ADDRESS, a.AsSlice())
		b.end()
	}
	for i := range f.Links {
		b.begin(unix.RTM_NEWLINK, make([]byte, unix.SizeofIfInfomsg))
		b.attr(unix.IFLA_IFNAME, fmt.Appendf(nil, "fill%d", i))
		kind := binary.NativeEndian.AppendUint16(nil, 4+8)
		kind = binary.NativeEndian.AppendUint16(kind, unix.IFLA_INFO_KIND)
		b.attr(unix.IFLA_LINKINFO, append(kind, "bridge\x00\x00"...))
		b.end()
	}
	if err := errors.Join(b.err, b.flush()); err != nil {
		tb.Fatalf("fill network namespace: %v", err)
	}
}

// batch sends messages, of which each is acknowledged.
type batch struct {
	fd      int
	family  byte
	b       []byte
	at      int // the message under way
	waiting int
	err     error
}

// addr is the address of a number, in a block of its own.
func (b *batch) addr(block byte, i int) netip.Addr {
	if b.family == unix.AF_INET {
		return netip.AddrFrom4([4]byte{10, block + byte(i>>16), byte(i >> 8), byte(i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:%x::%x:%x", block, i>>16, i&0xffff))
}

func number(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func (b *batch) begin(typ uint16, head []byte) {
	b.at = len(b.b)
	b.b = append(b.b, 0, 0, 0, 0)
	b.b = binary.NativeEndian.AppendUint16(b.b, typ)
	b.b = binary.NativeEndian.AppendUint16(b.b, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_ACK)
	b.b = append(b.b, make([]byte, 8)...)
	b.b = append(b.b, head...)
}

func (b *batch) attr(typ uint16, data []byte) {
	b.b = binary.NativeEndian.AppendUint16(b.b, uint16(4+len(data))) //nolint:gosec // short
	b.b = binary.NativeEndian.AppendUint16(b.b, typ)
	b.b = append(b.b, data...)
	b.b = append(b.b, make([]byte, (4-len(data)%4)%4)...)
}

func (b *batch) end() {
	binary.NativeEndian.PutUint32(b.b[b.at:], uint32(len(b.b)-b.at)) //nolint:gosec // short
	if b.waiting++; b.waiting == 100 {
		b.err = errors.Join(b.err, b.flush())
	}
}

func (b *batch) flush() error {
	if len(b.b) == 0 {
		return nil
	}
	if err := unix.Sendto(b.fd, b.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var buf [32 << 10]byte
	for ; b.waiting > 0; b.waiting-- {
		n, _, err := unix.Recvfrom(b.fd, buf[:], 0)
		if err != nil {
			return err
		}
		if code := int32(binary.NativeEndian.Uint32(buf[unix.NLMSG_HDRLEN:n])); code != 0 { //nolint:gosec // two's complement
			return unix.Errno(-code)
		}
	}
	b.b = b.b[:0]
	return nil
}
