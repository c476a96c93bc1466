package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// serve starts the world's three servers.
func (w *World) serve() error {
	o := w.opts
	for _, s := range []struct {
		ns  *netnsexec.NetNS
		srv server
	}{
		{w.Pod, server{who: "proxy", owner: Owner{o.ProxyUID, o.ProxyGID}, tcp: o.ProxyTCP, udp: o.ProxyUDP, transparent: o.TransparentPort}},
		{w.Pod, server{who: "app", owner: Owner{appID, appID}, tcp: appInbound, udp: []uint16{5000}}},
		{w.Out, server{who: "out", tcp: []uint16{80, 443, 53, 8080, 9090, 3306, 6379, 15008, 7070}, udp: []uint16{53, 5353, 8125}}},
	} {
		srv := &s.srv
		if err := s.ns.Do(srv.listen); err != nil {
			srv.close()
			return fmt.Errorf("listen as %s: %w", srv.who, err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			srv.loop()
		}()
		w.tb.Cleanup(func() {
			_, _ = unix.Write(srv.stop, binary.NativeEndian.AppendUint64(nil, 1))
			<-done
			srv.close()
		})
	}
	return nil
}

// server answers on all its ports from one thread. That thread has the server's UID and GID, because a connection
// belongs to whoever accepts it: rules that look at the owner see the server's answers too.
type server struct {
	who         string
	owner       Owner
	tcp, udp    []uint16
	transparent uint16

	epoll, stop int                  // stop is an eventfd
	sockets     map[int32]netip.Addr // to its wildcard address
	ports       map[int32]uint16
	isUDP       map[int32]bool
}

// listen opens the sockets in the calling thread's namespace.
func (s *server) listen() (err error) {
	s.epoll, s.stop = -1, -1
	s.sockets, s.ports, s.isUDP = map[int32]netip.Addr{}, map[int32]uint16{}, map[int32]bool{}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if err := watch(s.epoll, s.stop, unix.EPOLLIN); err != nil {
		return err
	}
	for _, wild := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		for _, port := range s.tcp {
			if err := s.add(wild, port, unix.SOCK_STREAM); err != nil {
				return fmt.Errorf("tcp %s: %w", netip.AddrPortFrom(wild, port), err)
			}
		}
		for _, port := range s.udp {
			if err := s.add(wild, port, unix.SOCK_DGRAM); err != nil {
				return fmt.Errorf("udp %s: %w", netip.AddrPortFrom(wild, port), err)
			}
		}
	}
	return nil
}

func (s *server) add(wild netip.Addr, port uint16, typ int) error {
	fd, err := ownedSocket(s.owner, wild, typ)
	if err != nil {
		return err
	}
	id := int32(fd) //nolint:gosec // descriptors are small
	s.sockets[id], s.ports[id], s.isUDP[id] = wild, port, typ == unix.SOCK_DGRAM
	level, transparent, pktinfo := unix.SOL_IP, unix.IP_TRANSPARENT, unix.IP_PKTINFO
	if wild.Is6() {
		level, transparent, pktinfo = unix.SOL_IPV6, unix.IPV6_TRANSPARENT, unix.IPV6_RECVPKTINFO
		if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	option := pktinfo // an answer must leave from the address that was asked
	if typ == unix.SOCK_STREAM {
		option = transparent
	}
	if typ == unix.SOCK_DGRAM || port == s.transparent {
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(wild, port))); err != nil {
		return err
	}
	if typ == unix.SOCK_STREAM {
		if err := unix.Listen(fd, 1024); err != nil {
			return err
		}
	}
	return watch(s.epoll, fd, unix.EPOLLIN)
}

// loop serves until stop is written to.
func (s *server) loop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer become(s.owner)()
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(s.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, e := range events[:max(n, 0)] {
			switch {
			case e.Fd == int32(s.stop): //nolint:gosec // descriptors are small
				return
			case s.isUDP[e.Fd]:
				s.answerUDP(e.Fd)
			default:
				s.answerTCP(e.Fd)
			}
		}
	}
}

func (s *server) close() {
	for fd := range s.sockets {
		_ = unix.Close(int(fd))
	}
	for _, fd := range []int{s.stop, s.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// answerTCP accepts one connection and says who we are and where it wanted to go. Errors are the client's to notice.
func (s *server) answerTCP(listener int32) {
	fd, _, err := unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	dst, err := originalDst(fd, s.sockets[listener].Is6())
	if err != nil { // ENOENT: conntrack does not know the connection, so nothing can have changed its destination
		local, err := unix.Getsockname(fd)
		if err != nil {
			return
		}
		dst = addrPort(local)
	}
	_, _ = unix.Write(fd, fmt.Appendf(nil, "%s:%d orig=%s\n", s.who, s.ports[listener], dst))
}

// originalDst is SO_ORIGINAL_DST, which is 80 at both levels (linux/netfilter_ipv4.h, IP6T_SO_ORIGINAL_DST in
// linux/netfilter_ipv6/ip6_tables.h).
func originalDst(fd int, v6 bool) (netip.AddrPort, error) {
	var raw unix.RawSockaddrAny
	level, size := unix.SOL_IP, uint32(unix.SizeofSockaddrInet4)
	if v6 {
		level, size = unix.SOL_IPV6, unix.SizeofSockaddrInet6
	}
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), unix.SO_ORIGINAL_DST,
		uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
		return netip.AddrPort{}, errno
	}
	b := (*[unix.SizeofSockaddrInet6]byte)(unsafe.Pointer(&raw))
	port := binary.BigEndian.Uint16(b[2:])
	if v6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port), nil
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), nil
}

// answerUDP answers one datagram from the address that it was sent to, which a wildcard socket does not do by itself.
func (s *server) answerUDP(fd int32) {
	var buf [64]byte
	oob := make([]byte, 128)
	_, n, _, from, err := unix.Recvmsg(int(fd), buf[:], oob, unix.MSG_DONTWAIT)
	if err != nil {
		return
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return
	}
	var reply []byte
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			info := *(*unix.Inet4Pktinfo)(unsafe.Pointer(&m.Data[0]))
			reply = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: info.Addr})
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			info := *(*unix.Inet6Pktinfo)(unsafe.Pointer(&m.Data[0]))
			reply = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: info.Addr})
		}
	}
	_, _ = unix.SendmsgN(int(fd), fmt.Appendf(nil, "%s:%d/udp", s.who, s.ports[fd]), reply, from, unix.MSG_DONTWAIT)
}
