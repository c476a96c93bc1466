package validate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)) //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)) //nolint:gosec // a port
	}
	return netip.AddrPort{}
}

// name is a socket's own address.
func name(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask for the socket's address: %w", err)
	}
	return addrPort(sa), nil
}

// originalDestination is SO_ORIGINAL_DST, which is 80 at both levels
// (linux/netfilter_ipv4.h, and IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h).
func originalDestination(fd int, f ruleset.Family) (netip.AddrPort, error) {
	var raw [unix.SizeofSockaddrInet6]byte
	level, size := unix.SOL_IP, uint32(unix.SizeofSockaddrInet4)
	if f == ruleset.IPv6 {
		level, size = unix.SOL_IPV6, unix.SizeofSockaddrInet6
	}
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), unix.SO_ORIGINAL_DST,
		uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 { //nolint:gosec // the kernel fills it
		return netip.AddrPort{}, errno
	}
	// struct sockaddr_in and sockaddr_in6: family, port, then address, or flow information and address.
	port := binary.BigEndian.Uint16(raw[2:])
	if f == ruleset.IPv6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])), port), nil
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), nil
}

// question is a DNS query that any resolver can answer and that leads nowhere: the address of a
// name below .invalid (RFC 6761), with the number in it to know it by (RFC 1035, section 4).
func question(n uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, n)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired; one question
	for _, label := range []string{fmt.Sprintf("meshcni-%d", n), "invalid"} {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, 1, 0, 1) // type A, class IN
}
