package ownsock

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Become gives the calling thread, which must be locked, another filesystem UID and GID until restore is called. The
// kernel's owner matches look at the credentials with which a socket's file was opened, and there at these two, which
// are a thread's own. The right to bind low ports and to be transparent stays. It fails where that is not allowed.
func Become(uid, gid uint32) (restore func(), err error) {
	if uid == uint32(os.Geteuid()) && gid == uint32(os.Getegid()) { //nolint:gosec // the kernel's ids are 32 bits
		return func() {}, nil
	}
	wasGID, _ := unix.SetfsgidRetGid(int(gid))
	wasUID, _ := unix.SetfsuidRetUid(int(uid))
	restore = func() {
		_, _ = unix.SetfsuidRetUid(wasUID)
		_, _ = unix.SetfsgidRetGid(wasGID)
	}
	// The calls don't fail; asked for an id that cannot be, they tell the present one.
	nowGID, _ := unix.SetfsgidRetGid(-1)
	nowUID, _ := unix.SetfsuidRetUid(-1)
	if nowUID != int(uid) || nowGID != int(gid) {
		restore()
		return nil, fmt.Errorf("open a socket as %d/%d: %w", uid, gid, unix.EPERM)
	}
	return restore, nil
}

// Open opens a non-blocking socket for addresses of a's family, in the calling thread's network namespace.
func Open(uid, gid uint32, a netip.Addr, typ int) (fd int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	restore, err := Become(uid, gid)
	if err != nil {
		return -1, err
	}
	defer restore()
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	return unix.Socket(family, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

// Sockaddr returns the address for system calls. The zone of a link-local address is its link's index.
func Sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	zone, _ := strconv.ParseUint(ap.Addr().Zone(), 10, 32)
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port()), ZoneId: uint32(zone)}
}

// AddrPort is the inverse of [Sockaddr]; zones aside.
func AddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)) //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)) //nolint:gosec // a port
	}
	return netip.AddrPort{}
}

// OriginalDst asks connection tracking where a connection was to go before NAT changed its destination. It is
// SO_ORIGINAL_DST, 80 at both levels (linux/netfilter_ipv4.h, and IP6T_SO_ORIGINAL_DST of
// linux/netfilter_ipv6/ip6_tables.h).
func OriginalDst(fd int, ipv6 bool) (netip.AddrPort, error) {
	var raw [unix.SizeofSockaddrInet6]byte
	level, size := unix.SOL_IP, uint32(unix.SizeofSockaddrInet4)
	if ipv6 {
		level, size = unix.SOL_IPV6, unix.SizeofSockaddrInet6
	}
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), unix.SO_ORIGINAL_DST,
		uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 { //nolint:gosec // the kernel fills it
		return netip.AddrPort{}, errno
	}
	// struct sockaddr_in and sockaddr_in6: family, port, then address, or flow information and address.
	port := binary.BigEndian.Uint16(raw[2:])
	if ipv6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])), port), nil
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), nil
}

// DstBeforeNAT returns a connection's destination before NAT changed it. If connection tracking does not know
// the connection, nothing can have changed it: then it is the local address.
func DstBeforeNAT(conn *net.TCPConn) netip.AddrPort {
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // of a TCP connection
	dst := netip.AddrPortFrom(local.Addr().Unmap().WithZone(""), local.Port())
	raw, err := conn.SyscallConn()
	if err != nil {
		return dst
	}
	_ = raw.Control(func(fd uintptr) {
		if original, err := OriginalDst(int(fd), dst.Addr().Is6()); err == nil {
			dst = original
		}
	})
	return dst
}
