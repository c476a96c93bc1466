package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

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

// server answers on all its ports from one thread, which has the server's UID and
// GID: a connection belongs to whoever accepts it, and so do its answers for rules
// that look at the owner.
type server struct {
	who         string
	owner       Owner
	tcp, udp    []uint16
	transparent uint16

	epoll, stop int // stop is an eventfd
	listeners   map[int32]listener
}

type listener struct {
	at  netip.AddrPort // a wildcard address
	typ int            // SOCK_STREAM or SOCK_DGRAM
}

// listen opens the sockets in the calling thread's namespace.
func (s *server) listen() (err error) {
	s.epoll, s.stop, s.listeners = -1, -1, map[int32]listener{}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if err := watch(s.epoll, s.stop, unix.EPOLLIN); err != nil {
		return err
	}
	for typ, ports := range map[int][]uint16{unix.SOCK_STREAM: s.tcp, unix.SOCK_DGRAM: s.udp} {
		for _, port := range ports {
			for _, wild := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
				if err := s.add(listener{netip.AddrPortFrom(wild, port), typ}); err != nil {
					return fmt.Errorf("%s: %w", netip.AddrPortFrom(wild, port), err)
				}
			}
		}
	}
	return nil
}

func (s *server) add(l listener) error {
	fd, err := ownedSocket(s.owner, l.at.Addr(), l.typ)
	if err != nil {
		return err
	}
	s.listeners[int32(fd)] = l //nolint:gosec // descriptors are small
	options := [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}}
	level, transparent, pktinfo := unix.SOL_IP, unix.IP_TRANSPARENT, unix.IP_PKTINFO
	if l.at.Addr().Is6() {
		level, transparent, pktinfo = unix.SOL_IPV6, unix.IPV6_TRANSPARENT, unix.IPV6_RECVPKTINFO
		options = append(options, [2]int{level, unix.IPV6_V6ONLY})
	}
	switch {
	case l.typ == unix.SOCK_DGRAM: // an answer must leave from the address that was asked
		options = append(options, [2]int{level, pktinfo})
	case l.at.Port() == s.transparent:
		options = append(options, [2]int{level, transparent})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, sockaddr(l.at)); err != nil {
		return err
	}
	if l.typ == unix.SOCK_STREAM {
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
			switch l := s.listeners[e.Fd]; {
			case e.Fd == int32(s.stop): //nolint:gosec // descriptors are small
				return
			case l.typ == unix.SOCK_DGRAM:
				s.answerUDP(int(e.Fd), l)
			default:
				s.answerTCP(int(e.Fd), l)
			}
		}
	}
}

func (s *server) close() {
	for fd := range s.listeners {
		_ = unix.Close(int(fd))
	}
	for _, fd := range []int{s.stop, s.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// answerTCP accepts one connection, and sends who accepted it and where it wanted to go. The client notices errors.
func (s *server) answerTCP(socket int, l listener) {
	fd, _, err := unix.Accept4(socket, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	dst, err := originalDst(fd, l.at.Addr().Is6())
	if err != nil { // ENOENT: conntrack does not know the connection, so nothing can have changed its destination
		local, err := unix.Getsockname(fd)
		if err != nil {
			return
		}
		dst = addrPort(local)
	}
	_, _ = unix.Write(fd, fmt.Appendf(nil, "%s:%d orig=%s\n", s.who, l.at.Port(), dst))
}

// originalDst is SO_ORIGINAL_DST, which is 80 at both levels (linux/netfilter_ipv4.h, IP6T_SO_ORIGINAL_DST in
// linux/netfilter_ipv6/ip6_tables.h). It gives a socket address; the functions used are for other options, whose
// values are as large.
func originalDst(fd int, v6 bool) (netip.AddrPort, error) {
	if v6 {
		info, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
		if err != nil {
			return netip.AddrPort{}, err
		}
		port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port))
		return netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), port), nil
	}
	raw, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := raw.Multiaddr // a sockaddr_in: family, port, address
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), nil
}

// answerUDP answers one datagram from the address that it was sent to, which a wildcard socket does not do by itself.
func (s *server) answerUDP(fd int, l listener) {
	var buf [64]byte
	oob := make([]byte, 128)
	_, n, _, from, err := unix.Recvmsg(fd, buf[:], oob, unix.MSG_DONTWAIT)
	if err != nil {
		return
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return
	}
	var reply []byte
	for _, m := range messages {
		switch { // in_pktinfo ends with the address, in6_pktinfo begins with it (ip(7), ipv6(7))
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			reply = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[8:12])})
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			reply = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])})
		}
	}
	_, _ = unix.SendmsgN(fd, fmt.Appendf(nil, "%s:%d/udp", s.who, l.at.Port()), reply, from, unix.MSG_DONTWAIT)
}
