package netnstest

import (
	"net/netip"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// ownedSocket opens a non-blocking socket of addr's family in the calling thread's namespace. It belongs to o: the
// kernel's owner matches look at the credentials with which the socket's file was opened, and there at the filesystem
// UID and GID, which are a thread's own and cheap to change. The right to bind low ports and to be transparent stays.
func ownedSocket(o Owner, addr netip.Addr, typ int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer become(o)()
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	return unix.Socket(family, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

// become gives the calling thread, which must be locked, another filesystem UID and GID until the returned function
// is called. For root neither can fail.
func become(o Owner) (restore func()) {
	if o == (Owner{}) {
		return func() {}
	}
	gid, _ := unix.SetfsgidRetGid(int(o.GID))
	uid, _ := unix.SetfsuidRetUid(int(o.UID))
	return func() {
		_, _ = unix.SetfsuidRetUid(uid)
		_, _ = unix.SetfsgidRetGid(gid)
	}
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	// A link-local address says by its zone which link it is on: here by the link's index, as probes are sent from any namespace.
	zone, _ := strconv.ParseUint(ap.Addr().Zone(), 10, 32)
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port()), ZoneId: uint32(zone)}
}
